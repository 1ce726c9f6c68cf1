"""The benchmarks never judge by time; here is judged that they read a ratio the right way round and leave no place of their page open."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    import timing

    yield timing
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and Path(str(sys.modules[name].__file__)).parent == BENCHMARKS:
            del sys.modules[name]


def test_ratios_are_read_the_right_way_round(timing: Any) -> None:
    times = {"ours": [1.0, 2.0, 9.0], "peer": [4.0, 6.0, 7.0]}
    fast = timing.speedup("a", "b", times, "ours", "peer", 2.5)
    assert (fast.ratio, fast.of_minima, fast.met, fast.goal) == (3.0, 4.0, True, ">= 2.5")
    dear = timing.cost("a", "b", times, "peer", "ours", 2.5)
    assert (dear.ratio, dear.of_minima, dear.met, dear.goal) == (3.0, 4.0, False, "<= 2.5")
    assert timing.size("a", "b", 2, 400, "c", 150.0, True).met and not timing.size("a", "b", 4, 2, "c", 1.5).met
    assert timing.speedup("a", "b", times, "ours", "peer").met is None


def test_ways_take_turns_and_the_first_turn_is_not_counted(timing: Any) -> None:
    turns: list[str] = []
    times = timing.interleaved({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, 3)
    assert turns == ["a", "b"] * 4 and len(times["a"]) == len(times["b"]) == 3


def test_the_page_shows_every_row_and_gives_a_missed_target_its_reason(timing: Any) -> None:
    from dataclasses import asdict

    import bench
    import page

    rows = [
        timing.Row("HE forward, frozen weights", "b16 t64", 2.0, 1.0, "ms", "depthwise conv1d", 0.5, 0.6, 1.3, True),
        timing.Row("caching", "2 x 256 tokens", 1.0, 1.0, "ms", "nnsight", 1.01, 1.0),
    ]
    told = [asdict(row) | {"met": row.met, "goal": row.goal} for row in rows]
    text = page.page({"machine": bench.machine(), "repetitions": 15, "sections": dict.fromkeys(bench.SECTIONS, told)})
    assert "{{" not in text and "None.\n" not in text
    assert text.count("| caching | 2 x 256 tokens | 1 ms | nnsight | 1 ms | 1.01 | 1 |  |  |") == len(bench.SECTIONS)
    assert "0.5, wanted >= 1.3. At 64 and 128 rows" in text
    empty = page.page({"machine": bench.machine(), "repetitions": 15, "sections": {name: [] for name in bench.SECTIONS}})
    assert "Not run this time." in empty and "None." in empty
