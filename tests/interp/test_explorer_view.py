"""A view and its link: what goes in comes out, and what means nothing is said and left out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyses.ledger import SPLITS, Entry
from interp.explorer.view import HOW, PAGES, Cell, View

number = st.integers(min_value=0, max_value=9999)
heads = st.fixed_dictionaries({"layer": number, "head": number})
slots = st.sampled_from(["attn", "mlp", "extractor"])
cells = st.one_of(
    heads,
    *[
        st.fixed_dictionaries({name: slots if name == "slot" else number for name in names})
        for names in (
            ["layer", "head", "source"],
            ["layer", "source"],
            ["source"],
            ["layer", "lag"],
            ["layer", "neuron"],
            ["layer", "slot"],
        )
    ],
)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
# built in the tests and not by the strategies: the type checks of a constructor draw random numbers
views = st.fixed_dictionaries(
    {
        "page": st.sampled_from(PAGES),
        "model": text,
        "text": st.none() | text,
        "chat": st.booleans(),
        "bos": st.none() | st.booleans(),
        "at": st.integers(-999, 999),
        "answer": st.none() | text,
        "against": st.none() | text,
        "by": st.sampled_from(SPLITS),
        "look": st.none() | cells,
        "out": st.lists(heads, unique_by=lambda h: (h["layer"], h["head"]), max_size=5),
        "how": st.sampled_from(HOW),
    }
)


@given(views)
def test_a_link_reproduces_its_view(parts):
    parts["look"] = None if parts["look"] is None else Cell(**parts["look"])
    view = View(**parts | {"out": tuple(Cell(**head) for head in parts["out"])})
    again, wrong = View.parse(view.link())
    assert again == view and wrong == ()


@given(st.text(max_size=200))
def test_any_link_is_read_without_an_error(fragment):
    view, wrong = View.parse(fragment)
    assert isinstance(view, View) and all(isinstance(line, str) for line in wrong)


@given(cells)
def test_a_cell_reads_as_it_is_written(parts):
    cell = Cell(**parts)
    assert Cell.parse(str(cell)) == cell


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("by=heads", "one of component, head"),
        ("at=1.5", "a whole number is needed"),
        ("look=../../etc/passwd", "names no part of a model"),
        ("out=L0H0,L0N1", "of one kind"),
        ("out=L0H1<-2", "of one kind"),
        ("colour=red", "there is no such setting"),
        ("how=random", "one of zero, mean"),
    ],
)
def test_what_a_link_cannot_mean_is_said_and_left_out(part, told):
    view, wrong = View.parse(f"#model=mha-austen&{part}")
    assert view == View(model="mha-austen")
    assert len(wrong) == 1 and told in wrong[0]


def test_a_cell_is_what_its_entry_names():
    assert Cell.of(Entry(label="L1H2 <- 3 ' a'", kind="head", layer=1, head=2, source=3)) == Cell.parse("L1H2<-3")
    assert Cell.of(Entry(label="from 3 ' a'", kind="source", source=3)) == Cell.parse("<-3")
    assert Cell.of(Entry(label="L1 lag 0", kind="lag", layer=1, lag=0)) == Cell.parse("L1 lag 0")
    assert Cell.of(Entry(label="L1 mlp", kind="mlp", layer=1)) == Cell.parse("L1 mlp")
    assert Cell.of(Entry(label="embed", kind="embed")) is None
    assert Cell.of(Entry(label="L1 b_O", kind="bias", layer=1)) is None


def test_another_prompt_keeps_parts_of_the_model_and_drops_parts_of_the_old_prompt():
    view = View(model="m", text="a", at=3, look=Cell(layer=0, source=2), out=(Cell(source=2),))
    assert view.with_text("b") == View(model="m", text="b")
    kept = View(model="m", text="a", at=3, look=Cell(layer=0, head=1), out=(Cell(layer=0, head=1),))
    assert kept.with_text("b") == replace(kept, text="b", at=-1)


def test_removing_another_kind_starts_anew():
    view = View().removing(Cell.parse("L0H1")).removing(Cell.parse("L2H3"))
    assert view.targets == {"heads": [(0, 1), (2, 3)]}
    assert view.removing(Cell.parse("<-4")).targets == {"sources": [4]}
    assert view.removing(Cell.parse("L0H1<-2")) == view, "a source of one head cannot be removed by itself"
    assert view.restoring(Cell.parse("L0H1")).targets == {"heads": [(2, 3)]}
