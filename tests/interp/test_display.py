"""Results in a notebook are pictures; everywhere else nothing changes."""

import subprocess
import sys
from types import SimpleNamespace

import plotly.graph_objects as go
import pytest

import interp
from interp import display, figures
from interp.figures.showing import FIGURES

TEXT = "It is a truth universally acknowledged"


@pytest.fixture(scope="module")
def model():
    return interp.load_model("mha-austen")


def kernel(monkeypatch, *, notebook: bool):
    """A shell as IPython has one, with the formatter that it asks."""
    formatters = pytest.importorskip("IPython.core.formatters")
    formatter = formatters.MimeBundleFormatter()
    shell = SimpleNamespace(display_formatter=SimpleNamespace(mimebundle_formatter=formatter), **({"kernel": object()} if notebook else {}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    return formatter


def test_a_notebook_shows_a_ledger_as_its_figure_with_its_certificate(model, monkeypatch: pytest.MonkeyPatch) -> None:
    import plotly.io

    monkeypatch.setattr(plotly.io.renderers, "default", "plotly_mimetype")
    formatter = kernel(monkeypatch, notebook=True)
    assert display.register()
    shown, _ = formatter(interp.ledger(model, TEXT)) or ({}, {})
    assert "certificate holds" in shown["text/plain"]
    assert shown["application/vnd.plotly.v1+json"]["data"][0]["type"] == "heatmap"
    assert formatter(object()) in (None, ({}, {}))


def test_a_terminal_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    formatter = kernel(monkeypatch, notebook=False)
    assert not display.register()
    assert not formatter.deferred_printers


def test_what_is_registered_is_what_can_be_drawn() -> None:
    assert set(display.SHOWN) == set(FIGURES)


def test_importing_interp_brings_in_no_figures() -> None:
    code = "import sys, interp; print([m for m in ('plotly', 'torch', 'IPython') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_result_has_a_figure_and_nothing_else_has(model) -> None:
    drawn = {
        "heads": interp.ledger(model, TEXT),
        "head+source": interp.ledger(model, TEXT, by="head+source"),
        "component": interp.ledger(model, TEXT, by="component"),
        "equivalence": interp.equivalence(model, TEXT),
        "lens": interp.lens(model, TEXT),
        "drive": interp.drive(model, TEXT),
    }
    for name, result in drawn.items():
        assert isinstance(figures.of(result), go.Figure), name
    assert figures.of(drawn["heads"]).data[0].type == "heatmap"
    assert figures.of(drawn["component"]).data[0].type == "bar"
    with pytest.raises(TypeError, match=r"Drive, Equivalence, Ledger, Lens.* got int"):
        figures.of(3)
