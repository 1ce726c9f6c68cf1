"""How far real rounding stays inside the practical bounds: z-scores of native and algebra gaps over texts, positions and answers.

    python benchmarks/calibrate.py [MODEL ...] [--dtype float32 --dtype bfloat16] [-o docs/calibration.md]

A practical bound is six standard deviations of a model of rounding that is calibrated, not proved (analyses/certificate.py). This script
is the calibration: for every (text, position, answer) it takes the gap between the float64 replay and the printed number in units of
the model's sigma. An honest sigma gives a root mean square near 1 (smaller means a wide bound) and no value beyond 6.
"""

import argparse
import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import interp
from analyses.certificate import SIGMAS
from interp._models import wing

TOKENS, TEXTS = 20, 6


def texts() -> list[str]:
    """Openings of evenly spaced paragraphs of the held-out text that ships with the decoders."""
    paragraphs = [p for p in wing("zoo").heldout_text().split("\n\n") if len(p) > 200]
    return [paragraphs[i * len(paragraphs) // TEXTS] for i in range(TEXTS)]


def scores(name: str, dtype: str, by: str = "head") -> dict[str, np.ndarray]:
    """z-scores by check: every position of every text, three answers each (the top token and two fixed ids)."""
    model = interp.load_model(name, dtype=dtype)
    found: dict[str, list[float]] = {"native": [], "algebra": []}
    for text in texts():
        ids = interp.encode(model, text[:400], False).ids[:, :TOKENS]
        for answer in (None, 7, 61):
            ledger = interp.ledger(model, ids, answer, position=range(ids.shape[1]), by=by, on_gap="report")
            for certificate in ledger.certificates:
                for check, z in found.items():
                    z.append(certificate[check].ratio * SIGMAS)
    return {check: np.array(z) for check, z in found.items()}


def table(names: Sequence[str], dtypes: Sequence[str]) -> str:
    lines = [
        "# Calibration of the practical bounds",
        "",
        "Written by `python benchmarks/calibrate.py` "
        f"(torch {torch.__version__.split('+')[0]}, {platform.machine()} CPU, {TEXTS} texts, {TOKENS} positions, 3 answers each).",
        "z is the gap in standard deviations of the model of rounding; a check fails beyond 6. A root mean square well below 1 says",
        "that the bound is wider than it had to be, a maximum above 6 would say that it is wrong.",
        "",
        "| model | type | check | totals | rms z | 99 % | max z |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        for dtype in dtypes:
            for check, z in scores(name, dtype).items():
                figures = f"{np.sqrt(np.mean(z**2)):.2f} | {np.quantile(z, 0.99):.2f} | {z.max():.2f}"
                lines.append(f"| {Path(name).name} | {dtype} | {check} | {len(z)} | {figures} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=interp.list_models())
    parser.add_argument("--dtype", action="append", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    page = table(options.models, options.dtype or ["float32", "bfloat16"])
    if options.output is None:
        print(page, end="")
    else:
        temporary = options.output.with_suffix(".tmp")
        temporary.write_text(page)
        temporary.replace(options.output)


if __name__ == "__main__":
    main()
