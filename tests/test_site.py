"""The documentation site ends its build on whatever is stale. Needs the docs extra."""

import re
from pathlib import Path
from typing import Any

import pytest
from test_docs import site

FIGURE = """```python figure
import plotly.graph_objects as go
from interp.figures._style import finish

finish(go.Figure(go.Bar(y=[1])), title="<b>", height=9)
```
"""


def test_a_page_shows_its_figures_and_what_its_code_prints(tmp_path: Path) -> None:
    shown = site.page("```python\nprint(1)\n```\n\n```text\n1\n```\n" + FIGURE, "page", tmp_path)
    assert shown.count("```python\n") == 2
    assert "``` { .text .output }".replace("``` ", "```") in shown
    assert re.search(r'<figure class="plot"><p class="plot-title">&lt;b&gt;</p>(.|\n)*id="plot-page-1"(.|\n)*id="data-page-1"', shown)
    assert "assets/plotly.min.js" in shown.replace("ASSETS", "assets")
    assert "<script" not in site.page("no figure here", "page", tmp_path)


def test_a_page_that_prints_something_else_ends_the_build(tmp_path: Path) -> None:
    with pytest.raises(site.StalePage, match="but its code prints\n1"):
        site.page("```python\nprint(1)\n```\n```text\n2\n```\n" + FIGURE, "page", tmp_path)


@pytest.mark.parametrize("cell", ["raise RuntimeError('planted')", "import sys\nprint('planted', file=sys.stderr)"])
@pytest.mark.filterwarnings("ignore")  # of the kernel's start, which is none of our code
def test_a_tutorial_that_fails_ends_the_build(cell: str, tmp_path: Path) -> None:
    pytest.importorskip("jupytext")
    pytest.importorskip("nbclient")
    source = tmp_path / "lesson.py"
    source.write_text("# %% [markdown]\n# # Lesson\n\n# %%\nprint(6 * 7)\n")
    page, notebook = site.tutorial(source, tmp_path)
    assert page.startswith("# Lesson")
    assert "```python\nprint(6 * 7)\n```\n\n``` { .text .output }\n42\n```" in page
    assert '"cell_type": "code"' in notebook
    source.write_text(f"# %% [markdown]\n# # Lesson\n\n# %%\n{cell}\n")
    with pytest.raises(Exception, match="planted"):
        site.tutorial(source, tmp_path)


def test_a_page_that_the_contents_forget_ends_the_build(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    pages = tmp_path / "docs"
    contents = list(site._pages(yaml.safe_load((site.ROOT / "mkdocs.yml").read_text())["nav"]))
    for name in contents:
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        (pages / name).touch()
    written: Any = yaml.safe_load(site.configure(pages).read_text())
    assert written["docs_dir"] == "docs"
    (pages / "comparison.md").unlink()  # hours of measuring: the site can do without
    assert "comparison.md" not in site.configure(pages).read_text()
    (pages / "stray.md").touch()
    with pytest.raises(site.StalePage, match=r"stray\.md"):
        site.configure(pages)
    (pages / "stray.md").unlink()
    (pages / contents[-1]).unlink()
    with pytest.raises(site.StalePage, match=re.escape(contents[-1])):
        site.configure(pages)


def test_the_finished_site_needs_no_network(tmp_path: Path) -> None:
    pytest.importorskip("latex2mathml")
    page = tmp_path / "api" / "page.html"
    page.parent.mkdir()
    helper = '<script src="https://a.cdn/iframe-worker/shim"></script>'
    formula = r'<span class="arithmatex">\(a \le b\)</span><div class="arithmatex">\[c\]</div>'
    page.write_text(f'<a href="https://elsewhere.org">a link is fine</a>{helper}{formula}')
    site.finish(tmp_path)
    text = page.read_text()
    assert 'src="../assets/iframe-worker.js"' in text
    assert text.count("<math") == 2
    assert 'display="block"' in text
    assert "arithmatex" not in text
    for fetched in ('<script src="https://a.cdn/x.js">', '<img src="//a.cdn/x.png">', '<link rel="stylesheet" href="https://a.cdn/x.css">'):
        page.write_text(fetched)
        with pytest.raises(site.StalePage, match="network"):
            site.finish(tmp_path)
