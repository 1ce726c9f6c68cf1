"""What a command costs from its start to its end, imports and reading of files included."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from timing import ALLOCATOR, REPETITIONS, Row

INTERP = str(Path(sys.executable).with_name("interp"))
SIXTEEN_TOKENS = "It is a truth universally acknowledged, that a single man in possession of a good"


def rows(quick: bool, folder: str | None) -> Iterator[Row]:
    yield seconds("interp --help", [INTERP, "--help"], 0.7)
    yield seconds("import interp", [sys.executable, "-c", "import interp"], 0.3)
    if quick:
        return
    with tempfile.TemporaryDirectory() as place:
        out = ["-o", str(Path(place) / "report.html")]
        yield seconds("interp report ishe-austen", [INTERP, "report", "ishe-austen", *out], 15.0, 1)
        if folder:
            yield seconds("interp report SmolLM2-135M", [INTERP, "report", folder, "--text", SIXTEEN_TOKENS, *out], 30.0, 1)


def seconds(item: str, command: Sequence[str], target: float, repetitions: int = REPETITIONS) -> Row:
    """CPU seconds, user and system, of the process and of those it starts; on one thread, so that on a machine that does nothing else they
    are the seconds one waits."""
    environment = {name: value for name, value in os.environ.items() if name not in ALLOCATOR}
    spent, waited = [], []
    for _ in range(repetitions + 1):
        before, start = os.times(), time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")
        after = os.times()
        spent.append(after.children_user + after.children_system - before.children_user - before.children_system)
        waited.append(time.perf_counter() - start)
    spent, waited = spent[1:], waited[1:]  # the first one reads the files from the disk
    note = f"least {min(spent):.2f} s; waited {min(waited):.2f} s"
    return Row(item, "CPU seconds", median(spent), 1.0, "s", "", median(spent), min(spent), target, False, note)
