"""SmolLM2-135M on indirect objects: every ledger closes within what rounding allows, and the same few heads move the name. No BOS."""

from typing import Any

import numpy as np
import pytest
from builders import IOI

import interp

pytestmark = pytest.mark.smollm2

MARY, JOHN = " Mary", " John"


def ledger(model: Any, **options: Any) -> Any:
    return interp.ledger(model, IOI, MARY, JOHN, prepend_bos=False, **options)


@pytest.fixture(scope="module")
def printed(smollm2: Any) -> float:
    logits, _ = interp.run_with_cache(smollm2, IOI, "blocks.29.hook_resid_post", prepend_bos=False)
    mary, john = (interp.resolve_answer(smollm2, name) for name in (MARY, JOHN))
    return float(logits[0, -1, mary].double() - logits[0, -1, john].double())


@pytest.mark.parametrize("by", ["component", "head"])
def test_the_ledger_adds_up_to_the_printed_difference(by: Any, smollm2: Any, printed: float) -> None:
    found = ledger(smollm2, by=by)
    assert found.holds
    assert found.total[0] == pytest.approx(printed, abs=3e-5)
    assert found.values.sum() == pytest.approx(float(found.total[0]), abs=1e-12)
    assert 6 < found.total[0] < 6.3
    native, algebra = found.certificate["native"], found.certificate["algebra"]
    assert abs(found.certificate.rounding) <= native.bound < 5e-5, "six sigma"
    assert native.proved > 100 * native.bound, "the rigorous bound could not tell a head from rounding"
    assert algebra.gap <= algebra.bound < 5e-13
    assert found.tokens[0] == "When" and "".join(found.tokens) == IOI, "as fed: no BOS"
    if by == "head":
        assert sum(e.kind == "head" for e in found.entries) == 30 * 9


def test_project_then_sum_is_concat_then_project(smollm2: Any) -> None:
    found = interp.equivalence(smollm2, IOI, prepend_bos=False)
    assert len(found.rows) == 30
    assert found.holds and 0 < found.worst_ratio < 1


def test_its_name_is_read_at_the_last_position_from_the_name_itself(smollm2: Any) -> None:
    """The entries by source: no other token than Mary and John moves the difference as far as Mary does."""
    found = ledger(smollm2, by="source")
    sources = {e.source: v for e, v in zip(found.entries, found.values[:, 0], strict=True) if e.kind == "source"}
    assert found.holds
    assert found.tokens[max((v, j) for j, v in sources.items() if j != len(found.tokens) - 1)[1]] == MARY


PLACES = ("store", "park", "school", "station", "office")
PAIRS = (("Mary", "John"), ("Sarah", "David"), ("Emma", "Jack"), ("Anna", "Peter"))
PROMPTS = [
    (f"When {a} and {b} went to the {place}, {b} gave a {gift} to", f" {a}", f" {b}")
    for place, gift in zip(PLACES, ("drink", "book", "letter", "ticket", "pen"), strict=True)
    for a, b in PAIRS
]


@pytest.mark.slow
def test_twenty_prompts_close_and_the_same_heads_move_the_name(smollm2: Any) -> None:
    texts, answers, against = (list(column) for column in zip(*PROMPTS, strict=True))
    found = interp.ledger_over(smollm2, texts, answers, against, by="head", prepend_bos=False, progress=False)
    assert found.prompts == 20 and found.holds and found.worst_ratio <= 1
    heads = [i for i, e in enumerate(found.entries) if e.kind == "head"]
    best = sorted(heads, key=lambda i: -found.mean[i])[:3]
    assert (found.interval[best, 0] > 0).all(), "the intervals of the top heads do not reach zero"
    halves = [
        interp.ledger_over(smollm2, texts[k::2], answers[k::2], against[k::2], by="head", prepend_bos=False, progress=False) for k in (0, 1)
    ]
    for half in halves:
        top = sorted((i for i, e in enumerate(half.entries) if e.kind == "head"), key=lambda i: -half.mean[i])[:5]
        assert {found.labels[i] for i in best} <= {half.labels[i] for i in top}, "the top three are among either half's top five"
    np.testing.assert_allclose((halves[0].mean + halves[1].mean) / 2, found.mean, atol=1e-9)
