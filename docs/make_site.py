"""Builds the documentation site: `make docs`, or `python docs/make_site.py`, writes site/.

In here: what turns the pages of this folder into what the site generator reads (build/docs). A page whose code draws pictures is run, and
its pictures go below their code; the tutorials are run as notebooks; in the finished HTML formulas become MathML. Not in here: Markdown to
HTML (zensical does it, by mkdocs.yml) and API pages (mkdocstrings reads the docstrings, docs/griffe_examples.py their examples).

The build is strict: code that raises, output other than the page shows, a notebook that fails, a page that the contents do not list, a link
or an anchor that leads nowhere, and anything the finished site would fetch from the network all end it.
"""

import ast
import contextlib
import html
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
BUILD = ROOT / "build"
SITE = ROOT / "site"
FENCE = re.compile(r"^```(\w+)(?: (figure|no-run))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


MEASURED = {"comparison.md", "performance.md"}
"""Pages that scripts write after hours of measuring. A site without one of them can be built."""


class StalePage(Exception):  # noqa: N818 - the name says what happened
    """A page that does not do what it shows."""


@dataclass(frozen=True)
class Block:
    """A python block of a page. `shows` is the text block that follows it directly: what it prints. `end` is where it ends in the page."""

    code: str
    shows: str | None
    draws: bool
    end: int


@dataclass(frozen=True)
class Ran:
    """What a block printed and, if it says that it draws, its figure."""

    block: Block
    printed: str
    figure: Any = None


def blocks(text: str) -> list[Block]:
    """The python blocks of a page that run, in order. `python figure` ends in a figure, `python no-run` is not run."""
    fences = list(FENCE.finditer(text))
    found = []
    for fence, after in zip_longest(fences, fences[1:]):
        if fence[1] != "python" or fence[2] == "no-run":
            continue
        follows = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
        found.append(Block(fence[3], after[3] if after and follows else None, fence[2] == "figure", fence.end()))
    return found


def run(text: str, folder: Path) -> Iterator[Ran]:
    """Runs a page's blocks one after the other in one namespace, in `folder`."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(text):
        tree = ast.parse(block.code, "<page>")
        last = tree.body.pop() if block.draws else None
        printed, figure = io.StringIO(), None
        with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
            exec(compile(tree, "<page>", "exec"), namespace)
            if last is not None:
                if not isinstance(last, ast.Expr):
                    raise StalePage(f"a figure block must end in an expression, not in {ast.unparse(last)!r}")
                figure = eval(compile(ast.Expression(last.value), "<page>", "eval"), namespace)
        yield Ran(block, printed.getvalue(), figure)


# ------------------------------------------------------------------------------------------------------------------ pages


def page(text: str, name: str, folder: Path) -> str:
    """A page as the site shows it, pictures below the code that draws them. Only pages with pictures are run."""
    if any(block.draws for block in blocks(text)):
        text = _with_figures(text, name, folder)
    return FENCE.sub(_fence, text)


def _with_figures(text: str, name: str, folder: Path) -> str:
    parts, at, drawn = [], 0, 0
    for ran in run(text, folder):
        if ran.printed != (ran.block.shows or ""):
            raise StalePage(f"{name} shows\n{ran.block.shows}\nbut its code prints\n{ran.printed}")
        parts.append(text[at : ran.block.end])
        at = ran.block.end
        if ran.block.draws:
            drawn += 1
            parts.append(f"\n\n{figure_html(ran.figure, f'{name}-{drawn}')}\n")
    return "".join(parts) + text[at:] + SCRIPTS


def _fence(match: re.Match[str]) -> str:
    """`text` after code is what the code prints and looks so; the words that only this script understands go."""
    language = "{ .text .output }" if match[1] == "text" else match[1]
    return f"```{language}\n{match[3]}```"


def figure_html(figure: Any, identity: str) -> str:
    """A figure with its words in HTML and its data beside it, for interp/templates/plots.js. One block without blank lines, so that
    Markdown leaves it alone."""
    from interp.report import _plot

    plot = _plot(identity, figure, prompt_line=False)
    lines = [f'<figure class="plot"><p class="plot-title">{html.escape(plot.title)}</p>']
    lines += [f'<p class="plot-sub">{html.escape(line)}</p>' for line in plot.subtitle]
    if plot.alarm:
        lines.append(f'<p class="plot-alarm" role="alert">{html.escape(plot.alarm)}</p>')
    if plot.choices:
        options = "".join(f"<option{' selected' if c == plot.chosen else ''}>{html.escape(c)}</option>" for c in plot.choices)
        lines.append(f'<p class="plot-sub"><label>Shown large: <select data-for="{identity}">{options}</select></label></p>')
    caption = f'<figcaption class="plot-sub">{html.escape(" ".join(plot.notes))}</figcaption>'
    if figure.data[0].type == "table":
        return "\n".join([*lines, _table(figure.data[0]), f"{caption}</figure>"])
    running = " running" if figure.layout.xaxis.visible is False else ""  # text in a row keeps its size, and scrolls on a phone
    canvas = (
        f'<div class="canvas" id="plot-{identity}" role="img" aria-label="{html.escape(plot.alt)}" style="height:{plot.height}px"></div>'
    )
    lines += [
        f'<div class="plot-scroll{running}">{canvas}</div>',
        caption,
        f'<script type="application/json" id="data-{identity}">{plot.data}</script></figure>',
    ]
    return "\n".join(lines)


def _table(trace: Any) -> str:
    """A figure that is a table as one of HTML, which wraps by the page's width. Its texts are escaped; `<b>` and `<br>` are markup."""
    columns = [list(column) for column in trace.cells.values]
    fills = trace.cells.fill.color if isinstance(trace.cells.fill.color, list | tuple) else [trace.cells.fill.color] * len(columns)
    shaded = [list(fill) if isinstance(fill, list | tuple) else [fill] * len(columns[0]) for fill in fills]
    head = "".join(f"<th>{title}</th>" for title in trace.header.values)
    rows = "".join(
        f"<tr>{''.join(_cell(text, fill) for text, fill in zip(row, fill_row, strict=True))}</tr>"
        for row, fill_row in zip(zip(*columns, strict=True), zip(*shaded, strict=True), strict=True)
    )
    return f'<div class="output-table"><table class="cells"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(text: str, fill: str) -> str:
    marked = f' class="marked" style="background:{fill}"' if fill != "white" else ""
    return f"<td{marked}>{text.replace('<br>', ' ')}</td>"


SCRIPTS = '\n\n<script src="ASSETS/plotly.min.js"></script><script src="ASSETS/plots.js"></script>\n'
"""Below everything on pages with figures; ASSETS becomes the way there."""


# ------------------------------------------------------------------------------------------------------------------ tutorials


def tutorial(source: Path, folder: Path) -> tuple[str, str]:
    """A tutorial (jupytext, py:percent) run as a notebook: (the page as Markdown, the notebook to download). A cell that raises ends it."""
    import jupytext
    import nbformat
    import plotly.graph_objects as go
    from nbclient import NotebookClient

    notebook = jupytext.read(source)
    download = nbformat.writes(notebook)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute(stderr=subprocess.DEVNULL)  # the kernel's own remarks; what a cell writes to stderr comes as an output
    parts, drawn = [], 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in _joined(cell.outputs):
            picture = output.get("data", {}).get("application/vnd.plotly.v1+json")
            if picture is None:
                parts.append(_output(output))
                continue
            drawn += 1
            figure = go.Figure({key: picture[key] for key in ("data", "layout", "frames") if key in picture})
            parts.append(figure_html(figure, f"{source.stem}-{drawn}"))
    first, *rest = parts
    note = f"[Download this page as a notebook]({source.stem}.ipynb){{ download }} · run by the build, outputs as they came"
    return "\n\n".join([first, note, *rest]) + (SCRIPTS if drawn else ""), download


def _joined(outputs: Sequence[Any]) -> list[Any]:
    """What a cell printed bit by bit as one output. Whatever it wrote to stderr would be on the page too, so nothing may."""
    joined: list[Any] = []
    for output in outputs:
        if output.output_type == "stream" and output.name == "stderr":
            raise StalePage(f"a tutorial writes to stderr: {output.text}")
        if joined and output.output_type == joined[-1].output_type == "stream":
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _output(output: Any) -> str:
    """A cell's output other than a figure, as Markdown."""
    data = output.get("data", {})
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>|\n\s*", "", data["text/html"], flags=re.DOTALL)
        return f'<div class="output-table" markdown="0">{table}</div>'
    text = output.get("text") or data.get("text/plain", "")
    return f"``` {{ .text .output }}\n{text.rstrip()}\n```"


# ------------------------------------------------------------------------------------------------------------------ the site


def prepare(source: Path, target: Path) -> None:
    """Writes into `target` what the generator reads: pages, tutorials, assets."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.py", "*.in", "__pycache__"))
    scratch = target.parent / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    for path in sorted(target.rglob("*.md")):
        _say(path.relative_to(target))
        _write(target, path, page(path.read_text(), path.stem, scratch))
    for path in sorted((source / "tutorials").glob("*.py")):
        _say(path.relative_to(source))
        text, notebook = tutorial(path, scratch)
        place = target / "tutorials" / path.name
        _write(target, place.with_suffix(".md"), text)
        place.with_suffix(".ipynb").write_text(notebook)
    from plotly.offline import get_plotlyjs

    (target / "assets" / "plotly.min.js").write_text(get_plotlyjs())
    shutil.copy(ROOT / "interp" / "templates" / "plots.js", target / "assets")


def _write(target: Path, path: Path, text: str) -> None:
    up = "../" * (len(path.relative_to(target).parts) - 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("ASSETS/", f"{up}assets/"))


def _say(what: Any) -> None:
    print(f"docs: {what}", flush=True)


def configure(target: Path) -> Path:
    """mkdocs.yml beside the pages; refuses a page that its contents forget and a line for a page that is missing."""
    import yaml

    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    there = {str(path.relative_to(target)) for path in target.rglob("*.md")}
    config["nav"] = _without(config["nav"], MEASURED - there)
    listed = set(_pages(config["nav"]))
    if listed != there:
        raise StalePage(f"mkdocs.yml: its contents lack {sorted(there - listed)} and list {sorted(listed - there)}, which do not exist")
    config |= {"docs_dir": target.name, "site_dir": "site"}
    place = target.parent / "mkdocs.yml"
    place.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    return place


def _pages(nav: Any) -> Iterator[str]:
    for entry in nav if isinstance(nav, list) else nav.values():
        yield from [entry] if isinstance(entry, str) else _pages(entry)


def _without(nav: Any, missing: set[str]) -> Any:
    """The contents without some pages."""
    if isinstance(nav, list):
        return [
            _without(entry, missing) for entry in nav if not (isinstance(entry, dict) and missing.intersection(map(str, entry.values())))
        ]
    return {title: _without(entry, missing) if isinstance(entry, list) else entry for title, entry in nav.items()}


def finish(site: Path) -> None:
    """Makes every page work offline: formulas as MathML, which browsers draw themselves, and the search's helper from our own assets.
    Refuses a page that would fetch anything else."""
    for path in site.rglob("*.html"):
        up = "../" * (len(path.relative_to(site).parts) - 1)
        text = re.sub(r'src="https://[^"]*iframe-worker[^"]*"', f'src="{up}assets/iframe-worker.js"', path.read_text())
        text = FORMULA.sub(_mathml, text)
        if fetched := FETCHED.search(text):
            raise StalePage(f"{path.relative_to(site)} fetches from the network: {fetched[0]}")
        path.write_text(text)


FETCHED = re.compile(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//[^"]*"|<link[^>]* href="(?:https?:)?//[^"]*\.css[^"]*"')


def _mathml(match: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    block = match[1] == "div"
    markup = convert(html.unescape(match[2]), display="block" if block else "inline")
    # moduli hug what they enclose
    markup = re.sub(r"<mo>(&#x0007C;|&#x02016;)</mo>", r'<mo stretchy="false" lspace="0.05em" rspace="0.05em">\1</mo>', markup)
    return f'<div class="formula">{markup}</div>' if block else markup


def main(arguments: Sequence[str] = ()) -> None:
    if arguments:
        raise SystemExit("usage: python docs/make_site.py")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["PLOTLY_RENDERER"] = "plotly_mimetype"
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # progress bars want a widget package, and none is shown here
    prepare(DOCS, BUILD / "docs")
    place = configure(BUILD / "docs")
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(place)], check=True)
    finish(BUILD / "site")
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.move(BUILD / "site", SITE)
    print(f"docs: open {(SITE / 'index.html').relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
