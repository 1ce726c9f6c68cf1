"""Ledgers over prompts: the stream's mean, standard error and interval are those of all values at once, in constant memory."""

import math
from typing import Any

import numpy as np
import pytest
from builders import decoder, prompt

from analyses.averaging import LedgerAverage
from analyses.certificate import Certificate, check
from analyses.ledger import Entry, Ledger
from interp import analysis


def ledger(values: dict[str, float] | list[float], *, entries: Any = None, ratio: float = 0.5, **fields: Any) -> Ledger:
    column = np.array(list(values.values() if isinstance(values, dict) else values))[:, None]
    many = entries or tuple(Entry(label=f"L0H{i}", kind="head", layer=0, head=i) for i in range(len(column)))
    native = check("native", ratio, 1.0, kind="practical", proved=9.0)
    total = column.sum(0)
    certificate = Certificate(float(total[0]), float(total[0]), 0.0, "float32", "float32", (native,))
    shape = {"by": "head", "model": "m", "at": "end", "tokens": (), "token_ids": (), "positions": (0,), "answer": "a", "against": None}
    return Ledger(**{**shape, **fields}, entries=many, values=column, total=total, certificates=(certificate,))


def test_the_stream_equals_all_values_at_once() -> None:
    # A large offset and a small spread: a naive sum of squares would lose every digit.
    values = np.random.default_rng(0).normal(1e6, 1e-3, (40, 5))
    average = LedgerAverage()
    for row in values:
        average.add(ledger(row.tolist()))
    found = average.result()
    np.testing.assert_allclose(found.mean, values.mean(0), rtol=1e-15)
    np.testing.assert_allclose(found.standard_error, values.std(0, ddof=1) / math.sqrt(40), rtol=1e-5)
    assert found.prompts == 40 and found.total_mean == pytest.approx(values.sum(1).mean(), rel=1e-14)
    assert (found.count == 40).all() and found.holds and found.worst_ratio == 0.5


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    truth, n = 2.0, 40
    values = np.random.default_rng(1).normal(truth, 3.0, (n, 600))
    average = LedgerAverage(seed=2)
    for row in values:
        average.add(ledger(row.tolist()))
    found = average.result()
    covered = ((found.interval[:, 0] <= truth) & (truth <= found.interval[:, 1])).mean()
    # 95 % less what a bootstrap of 40 prompts lacks (t against normal: 94.2 %); 600 entries: a standard error of 1 %.
    assert 0.90 < covered < 0.98
    width = (found.interval[:, 1] - found.interval[:, 0]).mean() / (2 * 1.96 * found.standard_error.mean())
    assert 0.9 < width < 1.1


def test_memory_does_not_grow_with_prompts() -> None:
    average = LedgerAverage()
    sizes = []
    for i in range(30):
        average.add(ledger([float(i), 1.0]))
        arrays = (average.count, average.mean, average.m2, average.weights, average.weighted)
        sizes.append(sum(x.nbytes for x in arrays) + len(average.keys))
    assert len(set(sizes)) == 1


def test_many_entries_get_fewer_replicates_and_not_more_memory() -> None:
    average = LedgerAverage()
    average.add(ledger([0.0] * 30_000))
    assert 100 <= average.weights.shape[1] < 1000


def source(j: int, token: str) -> Entry:
    return Entry(label=f"from {j} {token!r}", kind="source", source=j)


def test_a_source_is_its_position_whatever_the_token() -> None:
    average = LedgerAverage()
    average.add(ledger([1.0, 2.0], entries=(source(0, "a"), source(1, "b"))))
    average.add(ledger([3.0, 4.0, 5.0], entries=(source(0, "it's"), source(1, 'a "b"'), source(2, "c"))))
    found = average.result()
    assert found.labels == ("from 0", "from 1", "from 2")
    np.testing.assert_array_equal(found.mean, [2.0, 3.0, 5.0])
    np.testing.assert_array_equal(found.count, [2, 2, 1])
    assert np.isnan(found.standard_error[2]) and np.isnan(found.interval[2]).all(), "seen once: no interval"
    assert not np.isnan(found.interval[:2]).any()


def test_the_worst_certificate_is_kept_and_a_nan_is_worst() -> None:
    average = LedgerAverage()
    for r in (0.1, 0.7, 0.3):
        average.add(ledger([1.0], ratio=r))
    assert (average.result().worst_ratio, average.result().holds) == (0.7, True)
    average.add(ledger([1.0], ratio=math.nan))
    average.add(ledger([1.0], ratio=0.2))
    found = average.result()
    assert not found.holds
    assert math.isnan(found.worst_ratio)


def test_what_cannot_be_averaged_is_refused() -> None:
    average = LedgerAverage()
    with pytest.raises(ValueError, match="prompts: at least one is needed"):
        average.result()
    with pytest.raises(ValueError, match="one position is averaged, got 2"):
        average.add(ledger([1.0], positions=(0, 1)))
    average.add(ledger([1.0]))
    with pytest.raises(ValueError, match="m by 'lag' cannot be averaged with m by 'head'"):
        average.add(ledger([1.0], by="lag"))
    with pytest.raises(ValueError, match="k: a whole number >= 1"):
        average.result().top(0)


@pytest.mark.parametrize("mixer", ["mha", "he"])
def test_ledgers_over_real_prompts_are_the_mean_of_each(mixer: str) -> None:
    """Of HE too, whose layer has two biases called b_out."""
    model = decoder(mixer)
    many = [prompt(t, seed=t)[0].tolist() for t in (4, 6, 9)]
    found = analysis.ledger_over(model, many, answers=[7, 3, 5], against=9, by="head", progress=False)
    each = [analysis.ledger(model, ids, a, 9, by="head") for ids, a in zip(many, (7, 3, 5), strict=True)]
    assert found.labels == each[0].labels
    np.testing.assert_allclose(found.mean, np.mean([e.values[:, 0] for e in each], 0), atol=1e-14)
    assert found.total_mean == pytest.approx(found.mean.sum(), rel=1e-12), "the rounding row among them, entries add up on average too"
    assert found.holds and (found.count == 3).all()
    best = found.top(2)
    assert abs(best[0][1]) >= abs(best[1][1]) and best[0][2][0] <= best[0][1] <= best[0][2][1]
    frame = found.to_dataframe()
    assert {"label", "count", "mean", "standard_error", "low", "high"} <= set(frame.columns) and len(frame) == len(found.entries)


def test_prompts_and_answers_are_checked_at_the_door() -> None:
    model = decoder("mha")
    with pytest.raises(ValueError, match="answers: one a prompt is needed, got 1 for 2 prompts"):
        analysis.ledger_over(model, [[1, 2], [3, 4]], answers=[7], progress=False)
    with pytest.raises(TypeError, match=r"got one text; use interp.ledger for one"):
        analysis.ledger_over(model, "one text", progress=False)
    with pytest.raises(ValueError, match="at least one is needed"):
        analysis.ledger_over(model, [], progress=False)
