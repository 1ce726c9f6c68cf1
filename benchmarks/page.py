"""docs/performance.md: page.md with the tables of a run in it, and for each missed target its reason."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Why a target was missed, by the beginning of "item shape against".
REASONS = {
    "SHE forward, frozen weights b8 t64": """At 64 rows a call is half a millisecond, and the loop that ran just before has emptied the
processor's cache of the spectrum; alone, without taking turns, the same call takes half as long.""",
    "SHE forward, frozen weights b8 t256 equation": """The double loop is 33,000 calls of eight microseconds here; at 512 rows it is four
times as many, for a transform that takes twice as long.""",
    "HE forward, frozen weights": """At 64 and 128 rows oneDNN's depthwise convolution on AVX-512 is as fast as a transform and back; the
target was measured on AVX2. From 512 rows on it is reached.""",
    "HE forward and backward b16 t64": "The same: the convolution's forward part is fast on this processor.",
    "hooked decoder, nobody listening d64 b1 t16": """The whole pass is a millisecond of some 250 calls, a third of them hook points and the
modules around them. At width 256 the same calls are a twentieth of the time.""",
    "attribution of all heads 270 heads, 512 positions TransformerLens": """Both make the same 10 GFLOP, since every position has a
direction of its own, and folding them takes 0.12 s: 80 GFLOP/s, this core's peak. What the stack costs beyond that is moving 608 MiB, which
is cheap while the allocator keeps its pages. Without these settings, as one meets it, it is 0.69 s against 0.13, 5.3 times
(`python benchmarks/attribution.py`).""",
    "streaming moments": """The forward pass beside it is a tiny decoder's; the moments cost one pass over the activations whatever made
them.""",
}


def page(result: Mapping[str, Any]) -> str:
    """The whole page: page.md with the tables of a run in it."""
    sections = result["sections"]
    parts = {name: table(rows) if rows else "Not run this time." for name, rows in sections.items()}
    text = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")
    for name, value in {**result["machine"], "repetitions": str(result["repetitions"]), **parts, "missed": missed(sections)}.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| what | size | ours | against | theirs | ratio | of minima | target | |", "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        unit = f" {row['unit']}" if row["unit"] else ""
        least = "" if row["of_minima"] is None else f"{row['of_minima']:.3g}"
        verdict = {True: "met", False: "**missed**", None: ""}[row["met"]]
        told = "; ".join(part for part in (verdict, row["note"]) if part)
        numbers = f"{row['ours']:.3g}{unit} | {row['against']} | {row['theirs']:.3g}{unit} | {row['ratio']:.3g} | {least}"
        lines.append(f"| {row['item']} | {row['shape']} | {numbers} | {row['goal']} | {told} |")
    return "\n".join(lines)


def missed(sections: Mapping[str, list[dict[str, Any]]]) -> str:
    lines = []
    for row in (row for rows in sections.values() for row in rows if row["met"] is False):
        name = f"{row['item']} {row['shape']} {row['against']}"
        reason = next((why.replace("\n", " ") for start, why in REASONS.items() if name.startswith(start)), "No reason known.")
        lines.append(f"- {row['item']}, {row['shape']}, against {row['against']}: {row['ratio']:.3g}, wanted {row['goal']}. {reason}")
    return "\n".join(lines) or "None."
