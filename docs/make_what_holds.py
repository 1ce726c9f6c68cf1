"""Measures every claim on the shipped decoders (and a folder of SmolLM2) and writes the tables of docs/what-holds.md.

python docs/make_what_holds.py measure SMOLLM2_FOLDER    measures (ten minutes and more) into docs/what-holds.json, then writes
python docs/make_what_holds.py                           writes the tables from docs/what-holds.json alone
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "what-holds.json", HERE / "what-holds.md"
AUSTEN = ("she-austen", "ishe-austen", "he-austen", "ihe-austen", "mha-austen")
SHIPPED = ("mha-austen", "she-austen", "ishe-austen", "he-austen", "ihe-austen", "mha-induction")
NAMES = {"project-sum": "`project-sum` (heads)", "causal": "`causal`, bit for bit"}


def measure(smollm2: str) -> dict[str, Any]:
    """Verdicts of every model, and the variance slopes of the Austen decoders, fresh and trained."""
    import interp

    told: dict[str, Any] = {"claims": {}, "variance": {}}
    for name in (*SHIPPED, smollm2):
        print(f"verify {name}", file=sys.stderr)
        rows = interp.verify(interp.load_model(name)).rows
        kept = ("id", "state", "verdict", "measured", "bound", "note")
        told["claims"]["SmolLM2-135M" if name == smollm2 else name] = [{key: getattr(row, key) for key in kept} for row in rows]
    for name in AUSTEN:
        model = interp.load_model(name)
        first = "attn.hook_z" if name == "mha-austen" else "attn.hook_extraction"
        for state in ("init", "trained"):
            print(f"variance {name} {state}", file=sys.stderr)
            profile = interp.variance_profile(model, init=state == "init", sites=[first, "hook_attn_out"])
            told["variance"].setdefault(name, {})[state] = [
                {"site": r.site, "layer": r.layer, "slope": r.slope, "spread": r.spread, "r2": r.r2, "seeds": profile.seeds}
                for r in profile.rows
            ]
    return told


def verdicts(told: dict[str, Any]) -> str:
    """Claims by models."""
    models = list(told["claims"])
    ids = list(dict.fromkeys((row["id"], row["state"] if row["id"] == "variance" else "") for row in told["claims"][models[0]]))
    lines = [["claim", *models], ["---"] * (len(models) + 1)]
    for claim, state in ids:
        name = NAMES.get(claim, f"`{claim}`") + {"init": ", fresh weights", "trained": ", trained", "": ""}[state]
        line = [name]
        for model in models:
            found = [r["verdict"] for r in told["claims"][model] if r["id"] == claim and state in ("", r["state"])]
            line.append(("**fails**" if found[0] == "fails" else found[0]) if found else "n/a")
        lines.append(line)
    return _table(lines)


def slopes(told: dict[str, Any]) -> str:
    """Slopes of the variance, range over layers."""
    lines = [
        ["decoder", "fresh, extraction", "fresh, sublayer output", "trained, extraction", "trained, sublayer output", "R^2, trained"],
        ["---"] * 6,
    ]
    for name, states in told["variance"].items():
        cells = [name + (" (heads)" if name == "mha-austen" else "")]
        for state, digits in (("init", 3), ("trained", 2)):
            for output in (False, True):
                values = [r["slope"] for r in states[state] if (r["site"] == "hook_attn_out") == output]
                cells.append(f"{min(values):.{digits}f} .. {max(values):.{digits}f}")
        fits = [r["r2"] for r in states["trained"]]
        lines.append([*cells, f"{min(fits):.2f} .. {max(fits):.2f}"])
    return _table(lines)


def spreads(told: dict[str, Any]) -> str:
    """Standard deviation of a fresh slope over draws."""
    lines = [["decoder", "draws", "sd of a slope over draws"], ["---"] * 3]
    for name, states in told["variance"].items():
        values = [r["spread"] for r in states["init"]]
        lines.append([name, str(states["init"][0]["seeds"]), f"{min(values):.3f} .. {max(values):.3f}"])
    return _table(lines)


def drives(told: dict[str, Any]) -> str:
    """What the claim `drive` measured."""
    lines = [["model", "distance", "cosine", "verdict"], ["---"] * 4]
    for model, rows in told["claims"].items():
        row = next(r for r in rows if r["id"] == "drive")
        distance, cosine = re.findall(r"[+-][\d.]+ \[[^]]+\]", row["note"])
        lines.append([model, distance, cosine, row["verdict"]])
    return _table(lines)


def _table(lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def filled(text: str, told: dict[str, Any]) -> str:
    """The page with every table between its markers; its own words stay."""
    for name, table in {"verdicts": verdicts(told), "slopes": slopes(told), "spreads": spreads(told), "drives": drives(told)}.items():
        begin, end = f"<!-- {name} -->\n\n", f"\n\n<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"docs/what-holds.md lacks the markers of {name!r}")
        text = before + begin + table + end + after
    return text


def main() -> None:
    if sys.argv[1:2] == ["measure"]:
        RESULTS.write_text(json.dumps(measure(sys.argv[2]), indent=1) + "\n", encoding="utf-8")
    told = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), told), encoding="utf-8")


if __name__ == "__main__":
    main()
