"""Whatever the documents show runs and prints what they say: README, guide, docstrings. Whatever they point at exists."""

import contextlib
import doctest
import importlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for wing in ("models", "analyses", "interp")
    for path in (ROOT / wing).rglob("*.py")
    if re.search(r"^\s*>>> ", path.read_text(), re.MULTILINE)
)


def examples(text: str) -> list[tuple[str, str | None]]:
    """The python blocks of a page, in order, each with the text block that follows it directly: what it prints.

    A block that takes minutes is fenced as `python no-run`.
    """
    blocks = list(FENCE.finditer(text))
    found: list[tuple[str, str | None]] = []
    for i, block in enumerate(blocks):
        if block[1] != "python":
            continue
        after = blocks[i + 1] if i + 1 < len(blocks) else None
        follows = after is not None and after[1] == "text" and not text[block.end() : after.start()].strip()
        found.append((block[2], after[2] if after and follows else None))
    return found


def run(page: str, folder: Path) -> list[tuple[str, str | None]]:
    """Run a page's examples one after the other, in one namespace; what each printed beside what the page says it prints."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    with contextlib.chdir(folder):
        for code, expected in examples(page):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(code, "<page>", "exec"), namespace)
            printed.append((out.getvalue(), expected))
    return printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    for got, expected in run(page.read_text(), tmp_path):
        assert got == (expected or ""), f"{page.name} shows other output than its code prints"


def test_the_examples_of_a_page_are_found_and_compared(tmp_path: Path) -> None:
    page = "```python\nx = 1\n```\nsome words\n```text\nno output\n```\n```python\nprint(x)\n```\n\n```text\n1\n```\n"
    assert run(page, tmp_path) == [("", None), ("1\n", "1\n")]
    assert sum(len(examples(page.read_text())) for page in PAGES) >= 5
    assert all(any(expected for _, expected in examples((ROOT / page).read_text())) for page in ("README.md", "docs/guide.md"))


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples(module: str, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        result = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def pointers(text: str) -> list[tuple[str, str | None]]:
    """`folder/file.py` and `folder/file.py: name` in backticks."""
    return [(m[1], m[2]) for m in re.finditer(r"`((?:models|analyses|interp|tests|benchmarks|docs)/[\w/.-]*)(?:: ([\w.]+))?`", text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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
        assert (page.parent / link).exists(), f"{page.name}: the link {link} leads nowhere"


def test_every_formula_points_at_its_code_and_its_source() -> None:
    sections = re.split(r"^## ", (ROOT / "docs" / "mathematics.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(sections) >= 5
    for section in sections:
        title = section.splitlines()[0]
        assert pointers(section), f"{title}: no code file named"
        assert "\nSource: " in section, f"{title}: no source named"
