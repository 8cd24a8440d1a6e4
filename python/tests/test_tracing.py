"""Traces that real workers leave behind, read with nothing but what every Python has."""

from __future__ import annotations

import gzip
import json
import pathlib
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import EXAMPLES, PROGRAMS, environment, long, run_launcher, run_ranks

from paceline.torch import tracing
from paceline.torch.observing import NO_LAYER, UPDATE, Observer

PROGRAM = PROGRAMS / "tracing.py"
LAYERS = ["0", "2.0", "3"]
BYTES = 4 * (8 * 64 + 64 + 64 * 64 + 64 + 64 * 4 + 4)


class File:
    """A worker's file."""

    def __init__(self, folder: pathlib.Path, rank: int) -> None:
        with gzip.open(folder / f"worker-{rank}.json.gz") as file:
            self.all = json.load(file)
        self.about = self.all["paceline"]
        self.events: list[dict[str, Any]] = [event for event in self.all["traceEvents"] if event["ph"] == "X"]

    def of(self, category: str) -> list[dict[str, Any]]:
        return sorted((event for event in self.events if event["cat"] == category), key=lambda event: event["ts"])

    def in_step(self, category: str, number: int) -> list[dict[str, Any]]:
        (step,) = (step for step in self.of("step") if step["args"]["number"] == number)
        return [one for one in self.of(category) if step["ts"] <= one["ts"] < step["ts"] + step["dur"]]


def traced(paceline_command: str, folder: pathlib.Path, kind: str) -> list[File]:
    options = ("-q", "-n", "2", "--trace", folder, "--trace-steps", "4")
    done = run_launcher(paceline_command, "run", *options, "--", sys.executable, PROGRAM, kind)
    assert done.returncode == 0, done.stderr
    return [File(folder, rank) for rank in range(2)]


def _environment(folder: pathlib.Path, steps: str) -> Any:
    return lambda **more: environment(PACELINE_TRACE=str(folder), PACELINE_TRACE_STEPS=steps, **more)


def check(files: list[File]) -> None:
    for rank, file in enumerate(files):
        assert file.all["distributedInfo"] == {"rank": rank, "world_size": 2, "backend": "paceline"}
        assert file.all["baseTimeNanoseconds"] > 1.6e18
        assert [layer["name"] for layer in file.about["layers"]] == LAYERS
        assert file.about["layers"][1]["tensors"][0] == {"name": "2.0.weight", "elements": 4096, "dtype": "f32"}
        assert file.about["layers"][0]["activation_bytes"] == 16 * 64 * 4
        assert file.about["dropped"] == 0 and len(file.about["view"]["workers"]) == 2
        assert [step["args"]["number"] for step in file.of("step")] == [3, 4, 5, 6]
        # Updates of our optimizer may be made in the next step.
        assert len(file.of("update")) >= 4
        for number in range(3, 7):
            assert [one["name"] for one in file.in_step("forward", number)] == LAYERS
            assert [one["name"] for one in file.in_step("backward", number)] == LAYERS[::-1]


def sent_and_received(files: list[File]) -> None:
    """Whatever one worker sent in the middle of the recording, the other received, and as much of it."""

    def ends(file: File, direction: str) -> dict[Any, int]:
        return {
            (one["name"], *(one["args"][key] for key in ("use", "chunk", "part"))): one["args"]["bytes"]
            for one in file.of("message")
            if one["args"]["direction"] == direction
        }

    for file, other in (files, files[::-1]):
        middle = {(one["name"], one["args"]["use"]) for one in file.in_step("operation", 4)}
        sent, received = ends(file, "sent"), ends(other, "received")
        checked = [key for key in sent if key[:2] in middle]
        assert checked and all(sent[key] == received[key] for key in checked)


def test_an_unmodified_ddp_script_leaves_a_trace_of_every_worker(
    paceline_command: str, tmp_path: pathlib.Path
) -> None:
    files = traced(paceline_command, tmp_path / "made", "ddp")
    check(files)
    sent_and_received(files)
    for file in files:
        assert not file.about["crosses_step"]
        for number in range(3, 7):
            operations = file.in_step("operation", number)
            assert sum(one["args"]["bytes"] for one in operations) == BYTES
            # DDP waits for its buckets at the end of the backward pass, and is done before the update.
            (wait,) = file.in_step("wait", number)
            (update,) = file.in_step("update", number)
            assert wait["ts"] + wait["dur"] <= update["ts"]
            assert all(one["ts"] + one["dur"] <= wait["ts"] + wait["dur"] for one in operations)


def test_a_trace_of_our_optimizer_names_tensors_and_shows_what_each_layer_waited_for(
    paceline_command: str, tmp_path: pathlib.Path
) -> None:
    files = traced(paceline_command, tmp_path, "ours")
    check(files)
    sent_and_received(files)
    for file in files:
        assert file.about["crosses_step"]
        tensors = {tensor["name"] for layer in file.about["layers"] for tensor in layer["tensors"]}
        for number in range(3, 7):
            operations = [one for one in file.in_step("operation", number) if one["name"] in tensors]
            assert {one["name"] for one in operations} == tensors
            assert sum(one["args"]["bytes"] for one in operations) == BYTES
            assert {one["args"]["operation"] for one in operations} == {"all_reduce"}
            posts = file.in_step("post", number)
            assert len(posts) == len(tensors), "handing each tensor over is seen"
            assert {one["tid"] for one in posts} <= {one["tid"] for one in file.of("backward")}
            first = min(operations, key=lambda one: one["args"]["priority"])
            assert first["name"].startswith("0."), "what the forward pass needs first goes first"
        for wait in file.of("wait"):
            if "layer" not in wait["args"]:
                continue
            forward = [one for one in file.of("forward") if one["ts"] >= wait["ts"]][0]
            assert forward["name"] == wait["name"] and forward["ts"] >= wait["ts"] + wait["dur"]


def test_an_update_belongs_to_the_layer_that_waited_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[tuple[Any, ...]] = []
    observer = Observer(lambda: None, lambda: None)
    observer.moments = SimpleNamespace(now=lambda: 7, span=lambda *span: spans.append(span))  # type: ignore[assignment]
    monkeypatch.setattr(tracing, "current", SimpleNamespace(_observer=observer))
    tracing.end_update(tracing.begin_update())
    observer._inside.append([2, 0])
    tracing.end_update(tracing.begin_update())
    assert spans == [(UPDATE, NO_LAYER, 7, 7), (UPDATE, 2, 7, 7)]


@pytest.mark.parametrize("example", [long("ddp_resnet"), "ddp_gpt"])
def test_an_example_under_ddp_is_replayed_as_it_was_recorded(
    paceline_command: str, tmp_path: pathlib.Path, example: str
) -> None:
    program = EXAMPLES / f"{example}.py"
    options = ("-q", "-n", "2", "--trace", tmp_path, "--trace-steps", "6")
    done = run_launcher(paceline_command, "run", *options, "--", sys.executable, program, "--steps", "12")
    assert done.returncode == 0, done.stderr
    # Attention uses parameters of a module that it does not call: they are listed all the same.
    listed = sum(4 * one["elements"] for layer in File(tmp_path, 0).about["layers"] for one in layer["tensors"])
    assert listed in {one["args"]["bytes"] for one in File(tmp_path, 0).of("operation")}
    replayed = run_launcher(paceline_command, "replay", tmp_path, "--json")
    assert replayed.returncode == 0, replayed.stderr
    found = json.loads(replayed.stdout)
    # Buffers that are broadcast and the mean of the loss are a part of it: no time is measured here, it is accounted for.
    assert abs(found["recorded_step_ms"] / found["measured_step_ms"] - 1) < 0.01, found


@pytest.mark.parametrize("kind", [long(()), ("--clip", "1")], ids=["whole steps", "clipped"])
def test_a_script_of_horovods_is_replayed_as_it_was_recorded(
    paceline_command: str, tmp_path: pathlib.Path, kind: tuple[str, ...]
) -> None:
    options = ("-q", "-n", "2", "--trace", tmp_path, "--trace-steps", "6")
    program = EXAMPLES / "horovod_classifier.py"
    done = run_launcher(paceline_command, "run", *options, "--", sys.executable, program, "--epochs", "1", *kind)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        file = File(tmp_path, rank)
        assert not file.about["crosses_step"]
        for number in range(3, 9):
            assert file.in_step("wait", number) and file.in_step("update", number), "in the step that they belong to"
    # Workers begin the first recorded step at different times, which a replay does not know: in the second they wait for each other.
    # Steps of few milliseconds, of which a busy machine makes several percent; a wait that was not accounted for would be half of one.
    replayed = run_launcher(paceline_command, "replay", tmp_path, "--skip", "2", "--json")
    assert replayed.returncode == 0, replayed.stderr
    found = json.loads(replayed.stdout)
    assert abs(found["recorded_step_ms"] / found["measured_step_ms"] - 1) < 0.1, found


#: Ends in a step that is recorded.
SHORT = """
import torch
import paceline.torch as pl
pl.init()
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
optimizer = pl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model)
for inputs in torch.randn(12, 8, 64):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
"""


def test_groups_of_a_plan_are_replayed_also_where_the_program_ends_in_a_recorded_step(
    paceline_command: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "short.py").write_text(SHORT)
    tensors = [f"{layer}.{own}" for layer in range(3) for own in ("weight", "bias")]
    (tmp_path / "plan.toml").write_text(f"[fusion]\ngroups = [{json.dumps(tensors)}]\n")
    options = ("-q", "-n", "2", "--plan", tmp_path / "plan.toml", "--trace", tmp_path / "traces")
    done = run_launcher(paceline_command, "run", *options, "--", sys.executable, tmp_path / "short.py")
    assert done.returncode == 0, done.stderr
    replayed = run_launcher(paceline_command, "replay", tmp_path / "traces")
    assert replayed.returncode == 0, replayed.stderr
    # The group, and which gradients are in use.
    assert " 2 operations a step" in replayed.stdout, replayed.stdout


def test_a_program_records_by_itself_as_often_as_it_likes(tmp_path: pathlib.Path) -> None:
    for outcome in run_ranks(2, PROGRAM, "block", tmp_path):
        assert outcome.code == 0, outcome.errors
    for name in ("first", "second"):
        for rank in range(2):
            assert [step["args"]["number"] for step in File(tmp_path / name, rank).of("step")] == [1, 2]


def test_what_was_recorded_is_written_when_a_worker_is_told_to_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr("conftest.environment", _environment(tmp_path, "1000"))
    for outcome in run_ranks(2, PROGRAM, "killed"):
        assert outcome.code == -signal.SIGTERM, outcome.errors
    assert len(File(tmp_path, 1).of("step")) == 6


def test_a_folder_that_cannot_be_written_costs_the_trace_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("conftest.environment", _environment(tmp_path / "file" / "inside", "4"))
    for outcome in run_ranks(2, PROGRAM, "unwritable"):
        assert outcome.code == 0 and "trained" in outcome.output, outcome.errors
        assert "cannot be written" in outcome.errors and "file/inside" in outcome.errors
