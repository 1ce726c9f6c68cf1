"""Every target as a ratio measured in one run: `make bench` (all), `make bench-quick` (under three minutes, no pretrained model).

    python benchmarks/bench.py [--quick] [--smollm2 FOLDER] [--only NAME ..] [--json FILE] [--page FILE]

Prints a table, with the ratio of the last recorded run beside the new one; writes what was measured as JSON, and the page that shows it.
FOLDER is SmolLM2-135M as `interp convert` writes it; without one its rows are left out, and the page says so. With --only the sections
that are not measured stay what the record has. Never pass or fail: on a busy machine a ratio can be off by a fifth, so read the ratio of
minima too.
"""

import argparse
import importlib
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from timing import ALLOCATOR, REPETITIONS, Row, restart_with_settings

PACKAGES = ("torch", "numpy", "transformer-lens", "transformers", "nnsight")
SECTIONS = ("extraction", "decoders", "pretrained", "commands")
RECORD = Path(__file__).parent / "record.json"


def measured(section: str, quick: bool, smollm2: str | None) -> Iterator[Row]:
    module: Any = importlib.import_module(section)
    if section == "pretrained":
        return iter(()) if quick or smollm2 is None else module.rows(smollm2)
    return module.rows(quick, smollm2) if section == "commands" else module.rows(quick)


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package).split("+")[0]
        except PackageNotFoundError:
            versions[package] = "not installed"
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")]
    vectors = next((kind for kind in ("avx512f", "avx2") if kind in info), "")
    processor = f"{names[0] if names else platform.processor()} {vectors}".strip()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": f"{processor}, {len(names) or '?'} cores, one thread used",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "allocator": " ".join(f"{name}={value}" for name, value in ALLOCATOR.items()),
    }


def key(row: Row | dict[str, Any]) -> tuple[str, ...]:
    fields = row if isinstance(row, dict) else asdict(row)
    return fields["item"], fields["shape"], fields["against"], fields["note"] if fields["item"].startswith(("SHE", "extraction")) else ""


def show(rows: list[Row], before: dict[tuple[str, ...], float]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("item", "shape", "ours", "theirs", "against", "ratio", "of minima", "target", "", "last time", "note"):
        table.add_column(name, justify="right" if name in ("ours", "theirs", "ratio", "of minima", "last time") else "left")
    for row in rows:
        old = before.get(key(row))
        verdict = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[row.met]
        table.add_row(*cells(row), verdict, "" if old is None else f"{old:.3g}", row.note)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def cells(row: Row) -> tuple[str, ...]:
    unit = f" {row.unit}" if row.unit else ""
    least = "" if row.of_minima is None else f"{row.of_minima:.3g}"
    return row.item, row.shape, f"{row.ours:.3g}{unit}", f"{row.theirs:.3g}{unit}", row.against, f"{row.ratio:.3g}", least, row.goal


def write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--smollm2", metavar="FOLDER")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE")
    options = parser.parse_args()
    restart_with_settings()
    import torch
    from page import page

    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {"sections": {}}
    before = {key(row): row["ratio"] for rows in record["sections"].values() for row in rows}
    found: list[Row] = []
    result = {"machine": machine(), "repetitions": REPETITIONS, "sections": {name: record["sections"].get(name, []) for name in SECTIONS}}
    for section in options.only:
        new = []
        for row in measured(section, options.quick, options.smollm2):
            new.append(row)
            print(f"{row.item}, {row.shape}: {row.ratio:.3g} of {row.against}", file=sys.stderr, flush=True)
        found += new
        result["sections"][section] = [asdict(row) | {"met": row.met, "goal": row.goal} for row in new]
        if options.json:  # after every section: what an interrupted run has measured is kept
            write(options.json, json.dumps(result, indent=1) + "\n")
    show(found, before)
    if options.page:
        write(options.page, page(result))


if __name__ == "__main__":
    main()
