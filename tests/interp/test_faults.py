"""The self-test catches every fault it plants, says so loudly when it does not, and its list is complete."""

import json
from typing import Any

import pytest

import analyses.ledger
import interp
from analyses.certificate import Check
from interp import cli, faults

WANTED = {
    "two heads exchanged",
    "wrong KV head",
    "one head scaled by 1.0001",
    "output bias doubled",
    "output bias dropped",
    "final gain dropped",
    "wrong kind of norm",
    "positions shifted by one under left padding",
    "a lag off by one",
    "1/sqrt(i) off by one",
    "gate of the wrong row",
    "an aliased cache entry",
    "labels of two sources exchanged",
}


@pytest.fixture(scope="module")
def result() -> faults.SelfTest:
    return interp.selftest()


def test_every_planted_fault_is_caught_and_no_control_fails(result: faults.SelfTest) -> None:
    assert result.holds
    assert result.missed == ()
    assert {c.model for c in result.controls} == {"mha", "she", "ishe", "he", "ihe", "llama"}
    assert {c.caught_by for c in result.controls} == {"nothing"}


def test_the_list_of_faults_is_complete_and_each_is_far_over_its_bound(result: faults.SelfTest) -> None:
    assert {r.fault for r in result.rows} >= WANTED
    assert {"model", "view", "cache", "result"} == {r.planted for r in result.rows}
    assert min(r.factor for r in result.rows) > 100
    for fault in ("two heads exchanged", "a lag off by one", "gate of the wrong row"):
        assert {r.planted for r in result.rows if r.fault == fault} >= {"model", "view"}


def test_exchanged_labels_are_seen_by_the_intervention_alone(result: faults.SelfTest) -> None:
    rows = [r for r in result.rows if r.fault == "labels of two sources exchanged"]
    assert len(rows) == 6
    assert {r.caught_by for r in rows} == {"intervention"}


def test_a_check_that_cannot_fail_makes_the_selftest_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A tool whose algebra check always holds: the faults that only it sees slip through, and the exit code says so."""
    judge = analyses.ledger.judge

    def blind(*args: Any) -> list[list[Check]]:
        return [[c for c in row if c.name not in ("algebra", "rows")] for row in judge(*args)]

    monkeypatch.setattr(analyses.ledger, "judge", blind)
    monkeypatch.setattr(faults, "MIXERS", ("mha",))
    monkeypatch.setattr(faults, "_llama", lambda seed: faults._decoder("she", seed))
    assert cli.main(["selftest", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert not shown["holds"]
    assert any(not row["caught"] and row["fault"] == "two heads exchanged" for row in shown["rows"])
