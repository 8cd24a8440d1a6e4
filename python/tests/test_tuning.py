"""A job that tunes itself, with real processes."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest
from conftest import PROGRAMS, run_launcher

PROGRAM = PROGRAMS / "tuning.py"
#: Where any change is for the better: every few bytes wait for those before them.
POOR = ("--strategy", "ring", "--partition", "2KiB", "--credit", "2KiB", "--insecure")
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "B": 1}


def tuned(command: str, folder: pathlib.Path, kind: str, *more: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What workers tell, and what was decided."""
    log = folder / "decisions.jsonl"
    page = ("--ui-dir", folder / "page")
    options = ("-q", "--no-prefix", "-n", "2", *POOR, "--tune", "replay", "--tune-log", log, *page, *more)
    done = run_launcher(command, "run", *options, "--", sys.executable, PROGRAM, kind)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return told, [json.loads(line) for line in log.read_text().splitlines()]


def size(text: str) -> int:
    """A size as people write it."""
    unit = next((unit for unit in UNITS if text.endswith(unit)), None)
    return (1 << 64) - 1 if unit is None else int(text.removesuffix(unit)) * UNITS[unit]


@pytest.mark.parametrize("kind", ["ours", "ddp"])
def test_a_tuner_changes_the_settings_of_all_workers_at_one_step_and_says_why(
    paceline_command: str, tmp_path: pathlib.Path, kind: str
) -> None:
    told, decisions = tuned(paceline_command, tmp_path, kind)
    assert len(told) == 2
    first, second = (one["changed"] for one in told)
    assert first is not None and first == second
    _, settings = first
    switch = next(decision for decision in decisions if decision["action"] == "switch")
    assert switch["predicted_gain"] >= 1.05 and switch["cause"]
    wanted = switch["candidate"]
    assert settings["strategy"] == wanted["strategy"]
    assert settings["partition"] == size(wanted["partition"]) and settings["credit"] == size(wanted["credit"])
    assert settings["partition"] > told[0]["first"]["partition"]
    page = [json.loads(line) for line in (tmp_path / "page/page.jsonl").read_text().splitlines()]
    # A page is told the same, and what both workers did meanwhile.
    shown = [line for line in page if line["kind"] == "decision"]
    known = [(one["step"], one["action"]) for one in decisions]
    assert (switch["step"], "switch") in [(one["step"], one["action"]) for one in shown]
    assert all((one["step"], one["action"]) in known for one in shown)
    seen = [line for line in page if line["kind"] == "seen"]
    assert {line["rank"] for line in seen} == {0, 1}
    assert all(0 < line["loss"] < 10 for line in seen if line["loss"] is not None)
    assert any(line["loss"] is not None for line in seen) and any(line["operations"] for line in seen)
    # Metrics of both workers tell of the new view, and of the layers.
    assert told[0]["view"] == told[1]["view"] == settings["version"]
    assert all(seconds > 0 for one in told for seconds in one["seconds"])
    if kind == "ours":
        assert told[0]["names"] == [f"{layer}.{own}" for layer in (0, 2, 4) for own in ("weight", "bias")]
    else:
        assert told[0]["names"] == [f"tensor {place}" for place in range(len(told[0]["names"]))] != []


def test_a_tuner_that_may_choose_averages_tunes_workers_that_average_parameters(
    paceline_command: str, tmp_path: pathlib.Path
) -> None:
    told, decisions = tuned(paceline_command, tmp_path, "ours", "--tune-averages")
    assert [one["mode"] for one in told] == ["groups", "groups"]
    first, second = (one["changed"] for one in told)
    assert first is not None and first == second
    switch = next(decision for decision in decisions if decision["action"] == "switch")
    assert first[1]["strategy"] == switch["candidate"]["strategy"]


def test_an_unknown_way_to_tune_is_refused_before_anything_starts(paceline_command: str) -> None:
    done = run_launcher(paceline_command, "run", "-n", "2", "--tune", "luck", "--", "true")
    assert done.returncode == 2 and "known: default" in done.stderr
