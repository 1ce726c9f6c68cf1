"""The explorer without a browser: what it refuses and where it says so, what it offers, what dies and what stays."""

import contextlib
import json
import os
import signal
import threading
import time
import urllib.request
from dataclasses import replace

import pytest
import torch

import interp
from interp.explorer import engine as rooms
from interp.explorer import explore, export, panels, pictures
from interp.explorer.actions import act
from interp.explorer.callbacks import DEPENDS
from interp.explorer.engine import Engine, Source, offered
from interp.explorer.jobs import Jobs
from interp.explorer.view import Cell, Problem, View

INDUCTION = View(model="mha-induction")
PATIENCE = 120


@pytest.fixture(scope="module")
def engine():
    return Engine(offered([]))


def said(content):
    """Every text in a component, joined."""
    if content is None or isinstance(content, str | int | float):
        return str(content or "")
    if isinstance(content, list | tuple):
        return " ".join(said(c) for c in content)
    return said(getattr(content, "children", None))


# ---- models


def test_the_models_given_come_first_and_names_are_never_taken_twice(tmp_path):
    model = interp.load_model("mha-induction")
    folders = [tmp_path / side / "mine" for side in "ab"]
    for folder in folders:
        model.save_pretrained(folder)
    sources = offered([*map(str, folders), "ishe-austen"])
    assert [s.name for s in sources[:3]] == ["mine", "mine (2)", "ishe-austen"]
    assert [s.place for s in sources[:2]] == [str(f.resolve()) for f in folders]
    assert len({s.name for s in sources}) == len(sources) and {s.name for s in sources} >= set(interp.list_models())
    with pytest.raises(ValueError, match="did you mean 'mha-austen'"):
        offered(["mha-austin"])


def test_a_model_is_loaded_once_whoever_asks(engine, monkeypatch):
    loads = []
    slow = Engine((Source(name="a", place="mha-induction"),))

    def load(place, **_):
        loads.append(place)
        time.sleep(0.2)
        return interp.load_model(place)

    monkeypatch.setattr(rooms, "load_model", load)
    threads = [threading.Thread(target=slow.model, args=("a",)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == ["mha-induction"]
    (held,), process = slow.memory()
    weights = sum(p.numel() * 4 for p in slow.model("a").parameters()) / 2**20
    assert held[0] == "a" and held[1] == pytest.approx(weights, rel=0.2)
    assert process is None or process > held[1]


def test_a_name_is_never_a_path(engine, tmp_path):
    interp.load_model("mha-induction").save_pretrained(tmp_path / "there")
    for name in (str(tmp_path / "there"), "/etc/passwd", "../models", ""):
        with pytest.raises(Problem, match="No model") as refused:
            engine.model(name)
        assert refused.value.place == "model"


# ---- prompts and answers


@pytest.mark.parametrize(
    ("change", "place", "told"),
    [
        ({"text": ""}, "prompt", "The box is empty"),
        ({"text": "zebra"}, "prompt", "cannot read"),
        ({"text": "c1 " * 500}, "prompt", "Text has 500 tokens, more than"),
        ({"text": "c1 " * 70_000}, "prompt", "characters are too many"),
        ({"chat": True}, "prompt", "no chat template"),
        ({"at": 9}, "position", "Position 9 is outside the prompt of 9 tokens"),
        ({"answer": "h4 a0"}, "answer", "is 2 tokens"),
        ({"answer": "#99999"}, "answer", "not in the vocabulary"),
        ({"answer": "a0", "against": "a0"}, "against", "same token"),
        ({"by": "neuron"}, "by", "has no FFN"),
    ],
)
def test_what_cannot_be_is_said_beside_its_control(engine, change, place, told):
    with pytest.raises(Problem) as refused:
        engine.ledger(replace(INDUCTION, **change))
    assert refused.value.place == place and told in str(refused.value)
    assert told in said(panels.problem(refused.value, (place,)))
    assert told not in said(panels.problem(refused.value, ("elsewhere",)))


def test_a_prompt_that_would_fill_the_memory_is_refused_with_the_length_that_fits(engine, monkeypatch):
    fits = len(engine.prompt(INDUCTION).ids)
    monkeypatch.setattr(rooms, "MAX_ACTIVATIONS", 4 * 2 * fits * (8 * engine.model("mha-induction").cfg.d_model + 4 * fits))
    engine.prompt(INDUCTION)
    with pytest.raises(Problem, match=rf"at most {fits} tokens"):
        engine.prompt(replace(INDUCTION, text=engine.example("mha-induction") + " h4"))


def test_a_token_without_a_text_of_its_own_is_named_by_its_id(engine):
    name = "mha-austen"
    model = engine.model(name)
    for token in range(0, model.cfg.d_vocab, 7):
        typed = engine.spell(name, token)
        view = View(model=name, answer=typed, against=engine.spell(name, (token + 1) % model.cfg.d_vocab))
        assert engine.answers(view)[0] == token


def test_the_same_word_with_its_space_is_offered(engine):
    austen = View(model="mha-austen")
    assert engine.near_miss(austen, "much") == " much"
    assert engine.near_miss(austen, " much") is None


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("L2H0", "There is no layer 2"),
        ("L1H4", "heads 0 to 3"),
        ("<-9", "position 9 is outside"),
        ("L0 lag 9", "lag 9 is outside"),
        ("L0N3", "has no FFN"),
    ],
)
def test_a_part_that_does_not_exist_is_refused(engine, cell, told):
    with pytest.raises(Problem) as refused:
        engine.check_cell(INDUCTION, Cell.parse(cell))
    assert refused.value.place == "look" and told.lower() in str(refused.value).lower()


def test_results_are_kept_until_they_are_too_many(monkeypatch):
    engine = Engine(offered([]))
    first = engine.ledger(INDUCTION)
    assert engine.ledger(INDUCTION) is first
    monkeypatch.setattr(rooms, "KEPT", 60)
    for by in ("head+source", "lag", "source"):
        engine.ledger(INDUCTION, by)
    again = engine.ledger(INDUCTION)
    assert again is not first and (again.values == first.values).all()


# ---- what is shown


def test_a_failed_certificate_is_loud():
    model = interp.load_model("mha-austen")
    model.blocks[1].hook_resid_post.add_hook(lambda x, hook: x + 0.01)
    engine = Engine(offered([model]))
    view = View(model=engine.names[0])
    assert "CERTIFICATE FAILED" in said(panels.standing(engine.ledger(view)))
    assert "certificate holds" not in said(panels.standing(engine.ledger(view)))
    assert "CERTIFICATE FAILED" in said(panels.figure(pictures.of_ledger(engine.ledger(view)), "x", narrow=False))
    assert json.loads(export.as_json(engine, view))["ledger"]["certificate"]["holds"] is False
    assert "CERTIFICATE FAILED" in export.as_html(engine, view, "")


@pytest.mark.parametrize("name", ["mha-austen", "ihe-austen"])
@pytest.mark.parametrize("by", ["component", "head", "source", "head+source", "lag", "neuron"])
def test_a_click_means_the_cell_under_it(engine, name, by):
    """Every point that plotly may report on a picture names an entry of that ledger, and of the value drawn there."""
    view = View(model=name, by=by)
    ledger = engine.ledger(view)
    fig = pictures.of_ledger(ledger)
    sums = {}
    for entry, value in zip(ledger.entries, ledger.values[:, 0], strict=True):
        sums[Cell.of(entry)] = sums.get(Cell.of(entry), 0.0) + value
    seen = 0
    for trace in fig.data[:1]:
        points = (
            [(x, y, trace.z[r][c]) for r, y in enumerate(trace.y) for c, x in enumerate(trace.x)]
            if trace.type == "heatmap"
            else list(zip(trace.x, trace.y, trace.x if trace.orientation == "h" else trace.y, strict=True))
        )
        for x, y, value in points:
            cell = pictures.clicked(ledger, {"x": x, "y": y})
            if cell is not None and value == value:  # a cell drawn by another trace is NaN in this one
                assert sums[cell] == pytest.approx(float(value), abs=1e-9), (x, y, cell)
                seen += 1
    assert seen >= 4


def test_each_panel_depends_on_fields_that_a_view_has():
    known = {*View.__dataclass_fields__, "narrow"}
    assert all(set(fields) <= known for fields in DEPENDS.values())


def test_an_error_of_our_own_leaves_a_message(capsys):
    from interp.explorer.parts import drawn

    def fails():
        raise RuntimeError("boom <b>")

    assert "This part failed: RuntimeError: boom <b>" in said(drawn(fails, ()))
    assert "boom" in capsys.readouterr().err


# ---- actions


def test_actions_change_the_view_and_nothing_else(engine):
    view = act(INDUCTION, engine, "by", "lag", None)
    assert view == replace(INDUCTION, by="lag")
    assert act(view, engine, {"type": "token", "index": 3}, 1, None).at == 3
    assert act(view, engine, {"type": "token", "index": 3}, 0, None) == view, "a button that just appeared was not pressed"
    assert act(view, engine, {"type": "at", "name": "at"}, 8, None) == view, "the end is the end, however it is written"
    assert act(view, engine, "read", 1, engine.example("mha-induction")) == view
    assert act(replace(view, answer="a0"), engine, "model", "mha-austen", None) == View(model="mha-austen", by="lag")
    swapped = act(replace(view, against="a0"), engine, "swap", 1, None)
    assert (swapped.answer, swapped.against) == ("a0", "h4")
    with pytest.raises(ValueError, match="names no part"):
        act(view, engine, "look", "rm -rf", None)


# ---- long computations


def finished(jobs, key):
    end = time.monotonic() + PATIENCE
    while (status := jobs.status(key)).state == "running":
        assert time.monotonic() < end
        time.sleep(0.05)
    return status


def test_a_computation_tells_its_steps_and_gives_what_python_gives():
    with contextlib.closing(Jobs()) as jobs:
        key = jobs.start(name="x", place="mha-induction", kind="variance", device="cpu", dtype="float32")
        shares = set()
        while (status := jobs.status(key)).state == "running":
            shares.add(status.share)
            time.sleep(0.01)
        assert status.state == "done" and status.result["holds"] is True
        assert len(shares - {None}) >= 2 and all(0 <= share <= 1 for share in shares - {None})
        expected = interp.variance_profile(interp.load_model("mha-induction"))
        slopes = [row[2] for row in status.result["table"][1]]
        assert slopes == [f"{row.slope:.4g}" for row in expected.rows]
        assert "Variance along the sequence of x: the identity holds" in said(panels.job(status, narrow=False))


def test_a_computation_that_is_refused_killed_or_cancelled_says_so():
    with contextlib.closing(Jobs()) as jobs:
        common = {"name": "x", "device": "cpu", "dtype": "float32"}
        refused, killed = (jobs.start(place=place, kind="claims", **common) for place in ("no-such-model", "mha-induction"))
        with pytest.raises(ValueError, match="2 computations are running already"):
            jobs.start(place="mha-induction", kind="claims", **common)
        os.kill(jobs._jobs[killed].process.pid, signal.SIGKILL)
        assert "died (signal 9)" in said(panels.job(finished(jobs, killed), narrow=False))
        assert "no model 'no-such-model'" in finished(jobs, refused).message
        cancelled = jobs.start(place="mha-induction", kind="init", **common)
        jobs.cancel(cancelled)
        assert jobs.status(cancelled).state == "cancelled"
        assert jobs._jobs[cancelled].process.wait(timeout=PATIENCE) != 0
        assert jobs.status("guessed") is None
        with pytest.raises(ValueError, match="kind: one of claims, variance, init"):
            jobs.start(place="mha-induction", kind="os.system", **common)


# ---- in a notebook


def test_the_explorer_of_a_model_in_memory_explains_that_model():
    model = interp.load_model("mha-induction")
    with torch.no_grad():
        model.unembed.W_U.mul_(2.0)
    with contextlib.closing(explore(model)) as running:
        html = running._repr_html_()
        assert f'<iframe src="{running.url}"' in html and "height" in html
        with urllib.request.urlopen(running.url, timeout=30) as answer:
            assert answer.status == 200
        view = View(model=running.engine.names[0])
        assert running.engine.ledger(view).total[0] == interp.ledger(model, running.engine.example(view.model)).total[0]
        assert running.engine.names.count("mha-induction") == 1
        with pytest.raises(Problem, match=r"interp\.verify\(model\)"):
            running.engine.place(view.model)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(running.url, timeout=30)


def test_what_explore_cannot_start_with():
    with pytest.raises(ValueError, match="height: a whole number of pixels"):
        explore("mha-induction", height=10)
    with pytest.raises(ValueError, match="port: a whole number"):
        explore("mha-induction", port=-1)
    with contextlib.closing(explore("mha-induction")) as running, pytest.raises(ValueError, match="port: cannot listen"):
        explore("mha-induction", port=running._server.port)


# ---- in a shell


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["mha-austin"], "no model 'mha-austin': did you mean 'mha-austen'"),
        (["--token", "../../etc"], "--token: 8 to 128 letters"),
        (["--host", "192.0.2.1"], "port: cannot listen on 192.0.2.1"),
    ],
)
def test_what_cannot_be_served_is_one_line(capsys, asked, told):
    from interp.cli import main

    assert main(["explore", *asked]) == 2
    assert told in capsys.readouterr().err
