"""One long computation in a process of its own: a request on standard input, steps and the result as lines of JSON on standard output.

In here: what is computed and how far it is. Ends with its parent: standard input closes then.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO


def main() -> None:
    """Read one request, compute, answer."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not end up between our lines
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer: dict[str, Any] = {"result": compute(request, lambda share, step: _say(out, {"share": share, "step": step}))}
    except (ValueError, TypeError, OSError) as reason:
        answer = {"refused": str(reason)}
    _say(out, answer)
    out.flush()
    os._exit(0)  # the thread that waits for the parent holds standard input


def compute(request: dict[str, str], on_step: Callable[[float | None, str], None]) -> dict[str, Any]:
    """The result as JSON: `holds`, `lines` (its summary), `figure` (of interp.figures), `table` (columns and rows)."""
    import interp
    from interp import figures

    on_step(None, "loading the model")
    model = interp.load_model(request["place"], device=request["device"], dtype=request["dtype"])
    name = interp.model_name(model)

    def told(done: int, steps: int, what: str) -> None:
        on_step(done / steps, what)

    if request["kind"] == "claims":
        claims = interp.verify(model, on_step=told)
        columns = ("id", "state", "verdict", "measured", "bound", "claim", "note")
        rows = [[_cell(getattr(row, c)) for c in columns] for row in claims.rows]
        return {
            "holds": claims.holds,
            "lines": claims.summary(),
            "figure": figures.claims(claims, model=name).to_json(),
            "table": [columns, rows],
        }
    profile = interp.variance_profile(model, init=request["kind"] == "init", on_step=told)
    columns = ("layer", "site", "slope", "interval", "r2", "theory_slope", "note")
    rows = [[_cell(getattr(row, c)) for c in columns] for row in profile.rows]
    return {"holds": profile.holds, "lines": profile.summary(), "figure": figures.variance(profile).to_json(), "table": [columns, rows]}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return f"[{value[0]:.3f}, {value[1]:.3f}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _say(out: TextIO, line: dict[str, Any]) -> None:
    out.write(json.dumps(line) + "\n")
    out.flush()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
