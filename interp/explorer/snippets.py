"""What is on the page as Python that a reader can run: it prints the numbers shown."""

from analyses.ledger import Ledger

from .engine import Prompt, Source
from .view import Cell, View


def prompt_snippet(source: Source, view: View, prompt: Prompt, answer: str | int, against: str | int | None, *, cell: Cell | None) -> str:
    """The ledger of the view, the cell looked at, and what is removed.

    Args:
        source: where the model comes from.
        view: what is shown.
        prompt: the prompt as fed.
        answer, against: what is read, as texts of one token or ids.
        cell: the part looked at, if it is a row of this ledger.
    """
    bos = "" if prompt.bos is None else f", prepend_bos={prompt.bos}"
    named = f"answer={answer!r}" + ("" if against is None else f", against={against!r}") + f", position={prompt.at}"
    lines = [
        *_begin(source),
        *([f"# the prompt {view.text!r} through the model's chat template"] if prompt.templated and view.text is not None else []),
        f"text = {prompt.text!r}",
        f"asked = dict({named}{bos})",
        "",
        f"ledger = interp.ledger(model, text, **asked, by={view.by!r}, on_gap='report')",
        'print(f"{ledger.total[0]:+.4f}  total")',
        "for label, value in ledger.top(10):",
        '    print(f"{value:+.4f}  {label}")',
        'print("certificate holds:", ledger.certificate.holds)',
    ]
    if cell is not None:
        fields = [f"e.{n} == {v}" for n in ("layer", "head", "source", "lag", "neuron") if (v := getattr(cell, n)) is not None]
        if cell.slot is not None:
            fields = [f"e.layer == {cell.layer}", f"e.kind == {cell.slot!r}"]
        lines += [
            "",
            f"# {cell}",
            f"here = [value for e, value in zip(ledger.entries, ledger.values[:, 0]) if {' and '.join(fields)}]",
            'print(f"{sum(here):+.4f}  ' + str(cell) + '")',
        ]
    if view.targets:
        ((kind, targets),) = view.targets.items()
        lines += [
            "",
            f"removed = dict({kind}={targets!r}, how={view.how!r})",
            "gone = interp.ablate(model, text, **asked, **removed)",
            'print(f"{-gone.predicted:+.4f}  change that the ledger predicts")',
            'print(f"{-gone.direct:+.4f}  change when only these writes are taken out")',
            'print(f"{-gone.total:+.4f}  change when everything downstream runs again")',
            f"after = interp.ledger_without(model, text, **asked, by={view.by!r}, **removed, on_gap='report')",
            'print(f"{after.total[0]:+.4f}  total without them")',
        ]
    return "\n".join(lines) + "\n"


def model_snippet(source: Source, kind: str) -> str:
    """Claims or variance of a model."""
    calls = {
        "claims": ["result = interp.verify(model)", "print(*result.summary(), sep='\\n')"],
        "variance": ["result = interp.variance_profile(model)", "print(*result.summary(), sep='\\n')"],
        "init": ["result = interp.variance_profile(model, init=True)", "print(*result.summary(), sep='\\n')"],
    }
    return "\n".join([*_begin(source), *calls[kind]]) + "\n"


def _begin(source: Source) -> list[str]:
    if source.place is None:
        return ["import interp", "", "# model: the one that interp.explore(model) was given"]
    return ["import interp", "", f"model = interp.load_model({source.place!r})"]


def is_row(ledger: Ledger, cell: Cell) -> bool:
    """Whether a cell names rows of this very ledger."""
    return any(Cell.of(e) == cell for e in ledger.entries)


def spelled(typed: str) -> str | int:
    """An answer as Python gives it: its text, or its id."""
    return int(typed[1:]) if typed.startswith("#") else typed
