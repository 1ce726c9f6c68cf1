"""Whatever the documents show runs and prints what they say: README, guide, docstrings. Whatever they point at exists."""

import contextlib
import doctest
import importlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for wing in ("models", "analyses", "interp")
    for path in (ROOT / wing).rglob("*.py")
    if re.search(r"^\s*>>> ", path.read_text(), re.MULTILINE)
)


def script(name: str) -> Any:
    """A script of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site = script("make_site")


def some(page: Path) -> Any:
    """A page as a parameter; one whose code takes a minute is left to `make test-slow` (and to `make docs`)."""
    return pytest.param(page, id=page.relative_to(ROOT).as_posix(), marks=pytest.mark.slow if page.name == "verify-ishe.md" else ())


@pytest.mark.parametrize("page", [some(page) for page in PAGES])
def test_a_page_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    for ran in site.run(page.read_text(), tmp_path):
        assert ran.printed == (ran.block.shows or ""), f"{page.name} shows other output than its code prints"
        assert isinstance(ran.figure, go.Figure) == ran.block.draws


def test_the_examples_of_a_page_are_found_and_compared(tmp_path: Path) -> None:
    page = "```python\nx = 1\n```\nsome words\n```text\nno output\n```\n```python figure\nprint(x)\nx + 1\n```\n\n```text\n1\n```\n"
    page += "```python no-run\nraise\n```\n"
    assert [(ran.printed, ran.block.shows, ran.figure) for ran in site.run(page, tmp_path)] == [("", None, None), ("1\n", "1\n", 2)]
    with pytest.raises(site.StalePage, match="must end in an expression"):
        list(site.run("```python figure\nx = 1\n```\n", tmp_path))
    assert sum(len(site.blocks(page.read_text())) for page in PAGES) >= 20
    assert all(any(block.shows for block in site.blocks((ROOT / page).read_text())) for page in ("README.md", "docs/start.md"))


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples(module: str, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        result = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def test_every_public_function_has_an_example() -> None:
    import interp

    public = [getattr(interp, name) for name in interp.__all__] + [getattr(interp.figures, name) for name in interp.figures.__all__]
    bare = {f.__name__ for f in public if inspect.isfunction(f) and ">>> " not in (f.__doc__ or "")}
    # These need hours of training, its results, a browser or a file that does not ship.
    assert bare == {"compare", "read_comparison", "comparison", "explore", "convert_gguf"}


def pointers(text: str) -> list[tuple[str, str | None]]:
    """`folder/file.py` and `folder/file.py: name` in backticks."""
    return [(m[1], m[2]) for m in re.finditer(r"`((?:models|analyses|interp|tests|benchmarks|docs)/[\w/.-]*)(?:: ([\w.]+))?`", text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_points_at_exists(page: Path) -> None:
    for file, name in pointers(page.read_text()):
        assert (ROOT / file).exists(), f"{page.name}: {file} does not exist"
        if name is not None:
            module = file.removesuffix(".py").replace("/", ".")
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                assert hasattr(found, part), f"{page.name}: {file} has no {name}"
                found = getattr(found, part)
            assert getattr(found, "__module__", module) == module, f"{page.name}: {name} is written in {found.__module__}"
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        target = page.parent / link
        source = target.with_suffix(".py") if target.parent.name == "tutorials" else target  # the site makes a page of each tutorial
        assert source.exists(), f"{page.name}: the link {link} leads nowhere"


def test_the_reference_lists_all_that_is_public() -> None:
    import interp

    listed = set(re.findall(r"^::: ([\w.]+)", "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md")), re.MULTILINE))
    public = {f"interp.{name}" for name in interp.__all__} | {f"interp.figures.{name}" for name in interp.figures.__all__}
    assert public - listed == {"interp.figures", "interp.report"}  # modules: what is in them is listed one by one


def test_the_gallery_shows_every_figure() -> None:
    import interp

    drawn = set(re.findall(r"interp\.figures\.(\w+)\(", (ROOT / "docs" / "gallery.md").read_text()))
    assert set(interp.figures.__all__) - drawn == {"of", "write_html", "write_image", "comparison"}  # a comparison takes hours of training


def test_every_formula_points_at_its_code_and_its_source() -> None:
    sections = re.split(r"^## ", (ROOT / "docs" / "mathematics.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(sections) >= 5
    for section in sections:
        title = section.splitlines()[0]
        assert pointers(section), f"{title}: no code file named"
        assert "\nSource: " in section, f"{title}: no source named"


def calls(page: str) -> dict[str, list[str]]:
    """The columns of a page's first table, by their heading."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    head, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert all(len(row) == len(head) for row in rows)
    return {name: [row[i] for row in rows] for i, name in enumerate(head)}


@pytest.mark.parametrize("column", ["TransformerLens", "here"])
def test_the_calls_side_by_side_run(column: str, hf_folder: Any) -> None:
    from transformer_lens.model_bridge import TransformerBridge

    import interp
    from interp.huggingface import quiet

    table = calls((ROOT / "docs" / "coming-from.md").read_text())[column]
    name = "mha-austen" if column == "here" else str(hf_folder("gpt2"))
    space: dict[str, Any] = {
        "interp": interp,
        "torch": torch,
        "TransformerBridge": TransformerBridge,
        "name": name,
        "text": "It is a truth",
    }
    space |= {"zero": lambda value, hook: value * 0, "model": interp.load_model(name)}
    ran = [cell.strip("`") for cell in table if cell not in ("by hand", "another package")]
    assert len(ran) >= 14
    for code in ran:
        with quiet():
            exec(code, space)
    assert space["cache"]["blocks.0.hook_resid_post"].ndim == 3
