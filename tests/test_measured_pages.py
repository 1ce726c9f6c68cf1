"""Pages of measurements say what the committed results say: a page edited by hand, or results without their page, would show."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

from interp.comparison import read_comparison

DOCS = Path(__file__).resolve().parent.parent / "docs"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_comparison_is_its_results() -> None:
    page = script("make_comparison").page(read_comparison(DOCS / "comparison.json"))
    assert "{{" not in page
    assert page == (DOCS / "comparison.md").read_text()
    assert all((DOCS / "images" / f"comparison-{show}.png").is_file() for show in script("make_comparison").PICTURES)


def test_the_tables_of_what_holds_are_its_results() -> None:
    made = script("make_what_holds")
    told = json.loads((DOCS / "what-holds.json").read_text())
    assert made.filled((DOCS / "what-holds.md").read_text(), told) == (DOCS / "what-holds.md").read_text()
    assert len(told["claims"]) == 7
