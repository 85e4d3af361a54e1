"""p10.asktell's sides: both run trials, and say whether they kept all of them."""

from __future__ import annotations

import json
import sys

import pytest

from bench import ask_work, nbdist_ask, optuna_ask

BOTH_RIGHT = {"all complete": True, "best": True}


@pytest.mark.parametrize("sampler", ["random", "grid", "tpe"])
@pytest.mark.parametrize("side", [nbdist_ask, optuna_ask])
def test_either_side_asks_tells_and_says_what_a_trial_takes(
    side: object, sampler: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ask_work, "MOST", 3)
    outcome = ran(side, ["--sampler", sampler, "--trials", "12"], monkeypatch, capsys)
    assert outcome["value"] > 0
    assert outcome["check"] == BOTH_RIGHT


@pytest.mark.parametrize("side", [nbdist_ask, optuna_ask])
def test_either_side_reads_its_trials_back(
    side: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = ran(side, ["--trials", "12", "--value", "rebuild"], monkeypatch, capsys)
    assert outcome["value"] > 0
    assert outcome["check"] == BOTH_RIGHT


def test_a_slow_side_is_asked_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    monkeypatch.setattr(ask_work, "SECONDS", 0.0)
    assert ask_work.milliseconds(lambda: done.append(1)) >= 0
    assert len(done) == ask_work.WARM_UP + 1


def ran(
    side: object, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict:
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    side.main()
    return json.loads(capsys.readouterr().out)
