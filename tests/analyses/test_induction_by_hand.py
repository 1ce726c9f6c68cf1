"""Ground truth: an induction decoder whose weights are set by hand, so that its ledger is known on paper, to the last digit.

Four orthogonal subspaces of one-hot vectors: token, position, previous token, output. L0H0 looks one position back and copies that
token into "previous"; L1H0 looks where "previous" is the present token and copies the token there into "output". The heads L0H1 and L1H1
write nothing. The unembedding reads "output" with 4 (times 2 from `W_O`), "previous" with 1/4 and "token" with 1/2.

Why equality and not a tolerance: the scores differ by more than 2000, so that float32's softmax is exactly one-hot (exp(-104) is already
0); every other number is a power of two or a sum of few of them, and no norm stands between. Nothing is rounded anywhere.
"""

from typing import Any

import pytest
import torch
from builders import captured
from hypothesis import given, settings
from hypothesis import strategies as st

from analyses.equivalence import equivalence
from analyses.views import DecoderView
from interp import analysis
from models import DecoderConfig, HookedDecoder

V, L = 7, 8
TOKEN, POSITION, PREVIOUS, OUTPUT = 0, V, V + L, 2 * V + L
D = 3 * V + L + 1  # one idle dimension, for two heads of equal width
E = D // 2
SHARP = 2.0**14


def eye(rows: int, columns: int, n: int, *, down: int = 0, across: int = 0, value: float = 1.0) -> torch.Tensor:
    out = torch.zeros(rows, columns)
    out[torch.arange(n) + down, torch.arange(n) + across] = value
    return out


@torch.no_grad()
def induction() -> HookedDecoder:
    model = HookedDecoder(
        DecoderConfig(
            n_layers=2, d_model=D, n_ctx=L, d_vocab=V, mixer="mha", layout="mixer_only", n_heads=2, norm="none", positions="learned"
        )
    )
    for p in model.parameters():
        p.zero_()
    model.embed.W_E.copy_(eye(V, D, V, across=TOKEN))
    model.pos_embed.W_pos.copy_(eye(L, D, L, across=POSITION))
    previous, match = model.blocks[0].attn, model.blocks[1].attn
    previous.W_Q[0] = eye(D, E, L - 1, down=POSITION + 1, across=0, value=SHARP)  # position i asks for i - 1
    previous.W_K[0] = eye(D, E, L, down=POSITION)
    previous.W_V[0] = eye(D, E, V, down=TOKEN)
    previous.W_O[0] = eye(E, D, V, across=PREVIOUS)
    match.W_Q[0] = eye(D, E, V, down=TOKEN, value=SHARP)  # token a asks for "after a"
    match.W_K[0] = eye(D, E, V, down=PREVIOUS)
    match.W_V[0] = eye(D, E, V, down=TOKEN)
    match.W_O[0] = eye(E, D, V, across=OUTPUT, value=2.0)
    model.unembed.W_U.copy_(
        eye(D, V, V, down=OUTPUT, value=4.0) + eye(D, V, V, down=PREVIOUS, value=0.25) + eye(D, V, V, down=TOKEN, value=0.5)
    )
    return model.eval()


@st.composite
def prompts(draw: Any) -> tuple[list[int], int]:
    """Distinct tokens, then one of them again (not the first: it has no token before it); and where it stood."""
    n = draw(st.integers(3, V))
    tokens = draw(st.permutations(range(V)))[:n]
    at = draw(st.integers(1, n - 2))
    return [*tokens, tokens[at]], at


@settings(max_examples=15, deadline=None)
@given(prompts())
def test_head_and_source_put_the_answer_on_the_token_after_the_earlier_occurrence(prompt: tuple[list[int], int]) -> None:
    ids, at = prompt
    answer, last, now = ids[at + 1], len(ids) - 1, ids[-1]
    found = analysis.ledger(induction(), ids, answer, by="head+source")
    entries = {(e.kind, e.layer, e.head, e.source): v for e, v in zip(found.entries, found.values[:, 0], strict=True)}
    paper = {("head", 1, 0, at + 1): 8.0}
    if answer == ids[last - 1]:  # the token just before is the answer itself: the previous-token head writes it too
        paper["head", 0, 0, last - 1] = 0.25
    assert {k: v for k, v in entries.items() if v != 0} == paper
    assert found.total[0] == sum(paper.values())
    assert found.certificate.rounding == 0
    assert all(c.gap == 0 for c in found.certificate.checks)
    # The present token, read by the unembedding straight from the embedding, is on paper too.
    direct = analysis.ledger(induction(), ids, answer, against=now, by="head")
    assert dict(zip(direct.labels, direct.values[:, 0], strict=True))["embed"] == -0.5
    assert direct.total[0] == sum(paper.values()) - 0.5


IDS = [0, 3, 5, 1, 2, 3]
"""3 stood at position 1; 5 followed it, at position 2, three rows before the last."""


@pytest.mark.parametrize(
    ("by", "label", "value"),
    [
        ("component", "L1 attn", 8.0),
        ("head", "L1H0", 8.0),
        ("source", "from 2 '<5>'", 8.0),
        ("head+source", "L1H0 <- 2 '<5>'", 8.0),
        ("lag", "L1 lag 3", 8.0),
    ],
)
def test_every_split_says_what_the_paper_says(by: Any, label: str, value: float) -> None:
    found = analysis.ledger(induction(), IDS, 5, by=by)
    assert {k: v for k, v in found.top(3) if v} == {label: value}


def test_the_difference_of_two_answers_has_three_writers() -> None:
    found = analysis.ledger(induction(), IDS, 5, [2, 3], by="head")
    # against the mean of 2 (the token before: 1/4, L0H0) and 3 (the present token: 1/2, the embedding)
    assert {k: v for k, v in zip(found.labels, found.values[:, 0], strict=True) if v} == {"L1H0": 8.0, "L0H0": -0.125, "embed": -0.25}
    assert found.total[0] == 7.625


def test_removing_the_source_removes_the_answer() -> None:
    model = induction()
    shown = analysis.ablate(model, IDS, 5, sources=[(1, 2)])
    assert (shown.predicted, shown.direct, shown.total, shown.baseline, shown.after) == (8, 8, 8, 8, 0)
    # Without the previous-token head the second layer finds no match: it spreads evenly, and one sixth of the write is left.
    broken = analysis.ablate(model, IDS, 5, heads=[(0, 0)])
    assert (broken.predicted, broken.direct) == (0, 0)
    assert broken.total == pytest.approx(8 - 8 / 6, abs=1e-6)


def test_both_layers_look_where_the_paper_says() -> None:
    model = induction()
    view = DecoderView.of(model)
    _, cache = captured(view, torch.tensor([IDS]))
    for layer, at in ((0, 4), (1, 2)):
        expected = torch.zeros(6)
        expected[at] = 1
        assert torch.equal(cache[f"blocks.{layer}.attn.hook_pattern"][0, 0, -1], expected)
    assert equivalence(view, cache).holds


def test_with_one_position_moved_the_ledger_moves_along() -> None:
    """A reading that is always position 2 would pass the tests above on that prompt: one filler in front, and it is position 3."""
    found = analysis.ledger(induction(), [6, *IDS], 5, by="head+source")
    assert [(e.source, v) for e, v in zip(found.entries, found.values[:, 0], strict=True) if v and e.layer == 1] == [(3, 8.0)]
