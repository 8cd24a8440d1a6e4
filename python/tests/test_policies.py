"""Policies in real jobs: what they read and what they change is the same on all workers at the same step."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest
from conftest import PROGRAMS, run_launcher, run_ranks

torch = pytest.importorskip("torch")

import paceline.torch as pl  # noqa: E402
from paceline import PacelineError, policies, world  # noqa: E402

PROGRAM = PROGRAMS / "policies.py"
SAMPLES = 300


@pytest.fixture
def alone():
    pl.init()
    yield
    pl.shutdown()


def results(output: str) -> list[dict[str, Any]]:
    return [json.loads(line.split("RESULT ")[1]) for line in output.splitlines() if "RESULT " in line]


@pytest.mark.parametrize("elastic", [False, True])
def test_what_policies_read_and_change_is_the_same_on_all_workers(elastic: bool) -> None:
    ranks = run_ranks(2, PROGRAM, "own", *(["elastic"] if elastic else []))
    assert [rank.code for rank in ranks] == [0, 0], ranks[0].errors
    first, second = (results(rank.output)[0] for rank in ranks)
    for same in ("hooks", "read", "rate", "parameters", "heard", "refusals", "partition"):
        assert first[same] == second[same], same
    # Every sample once an epoch, though dice chose the batches.
    assert sorted(first["used"] + second["used"]) == sorted(2 * list(range(SAMPLES)))
    batches = [read[1] for read in first["read"]]
    assert len(set(batches)) > 1
    # A batch has what was in force, but for the ends of epochs.
    assert sum(len_ == wanted for len_, wanted in zip(first["sizes"], batches)) >= len(batches) - 4
    # Means over both workers, and noise from both, are known from the third step on.
    assert all(read[6] == 0.5 and read[5] is not None and read[3] > 0 for read in first["read"][2:])
    assert all(read[8] is not None for read in first["read"][4:])
    assert first["read"][-1][9] is not None
    # A size is heard by whoever changes membership, or refused.
    if elastic:
        assert first["heard"] == [[3, 8]] and first["refusals"] == []
    else:
        assert first["heard"] == [] and first["refusals"][0][0] == "size"
    assert first["partition"] == 8 << 10


def test_hooks_come_in_order() -> None:
    (rank,) = run_ranks(1, PROGRAM, "own")
    assert rank.code == 0, rank.errors
    told = results(rank.output)[0]
    hooks = told["hooks"]
    first = [["before_train", 0], ["before_step", 0], ["before_epoch", 0], ["after_step", 0], ["before_step", 1]]
    assert hooks[:5] == first
    assert hooks[-2][0] == "after_epoch" and hooks[-1][0] == "after_train"
    steps = [number for name, number in hooks if name == "after_step"]
    assert steps == list(range(len(told["sizes"])))
    assert [hook for hook in hooks if "epoch" in str(hook[0])] == [
        ["before_epoch", 0], ["after_epoch", 0], ["before_epoch", 1], ["after_epoch", 1],
    ]  # fmt: skip


def test_all_workers_see_how_many_of_them_are_slower_than_usual() -> None:
    ranks = run_ranks(2, PROGRAM, "slowed")
    assert [rank.code for rank in ranks] == [0, 0], ranks[0].errors
    first, second = (results(rank.output)[0]["read"] for rank in ranks)
    assert first == second
    # Usual is what the first steps were like; both workers wait for the one that is slow then.
    known = [share for share in first if share is not None]
    assert first[:11] == [None] * 11 and known[0] == 0.0
    assert first[50] == 1.0


def test_a_schedule_from_the_command_line_changes_all_workers_at_one_step(
    paceline_command: str, tmp_path: pathlib.Path
) -> None:
    schedule = tmp_path / "schedule.toml"
    schedule.write_text("[[at]]\nstep = 6\nbatch = 8\nlearning_rate = 2.5\n")
    launch = (paceline_command, "run", "-q", "--no-prefix", "-n", "2", "--policy", f"schedule:{schedule}", "--")
    run = run_launcher(*launch, sys.executable, PROGRAM, "named")
    assert run.returncode == 0, run.stderr
    first, second = results(run.stdout)
    assert first["sizes"] == second["sizes"] and first["rate"] == second["rate"] == 2.5
    # Told in the step after, heard in the next, in force in the one after that.
    assert first["sizes"][:9] == [4] * 9 and first["sizes"][9] == 8
    assert "the schedule says so" in run.stderr


def test_a_policy_that_cannot_be_made_is_refused_before_anything_starts(paceline_command: str) -> None:
    run = run_launcher(paceline_command, "run", "-n", "2", "--policy", "noise_scale:most=64,rule=luck", "--", "true")
    assert run.returncode == 2 and "`luck` is no value for `rule`" in run.stderr
    with pytest.raises(PacelineError, match="module:Class"):
        policies.load("nowhere:Own")
    with pytest.raises(PacelineError, match="no paceline.Policy"):
        policies.load("collections:Counter")


def test_scaled_learning_rates_are_those_of_the_update_and_schedulers_do_not_see_them(alone: None) -> None:
    def train(factor: float | None) -> tuple[list[float], list[float]]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = pl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        if factor is not None:
            context = pl.attach()
            context.scale_learning_rate(factor)
        seen = []
        for step in range(6):
            if factor is None and step >= 2:
                # By hand, what the policy's wish amounts to.
                optimizer.param_groups[0]["lr"] *= 2.0
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()
            if factor is None and step >= 2:
                optimizer.param_groups[0]["lr"] /= 2.0
            schedule.step()
            optimizer.zero_grad()
            seen.append(optimizer.param_groups[0]["lr"])
        optimizer.close()
        pl.detach()
        return [one.item() for one in model.parameters() for one in one.flatten()], seen

    scaled, seen = train(2.0)
    by_hand, expected = train(None)
    assert scaled == pytest.approx(by_hand, rel=1e-6)
    assert seen == pytest.approx(expected)


def test_policies_are_attached_once_and_numbers_that_nobody_reads_are_refused(alone: None) -> None:
    pl.attach(pl.Policy())
    with pytest.raises(PacelineError, match="attached already"):
        pl.attach(pl.Policy())
    with pytest.raises(PacelineError, match="no policy reads `speed`"):
        pl.report(speed=1.0)
    pl.detach()
    assert world.membership().adaptation is None
    pl.report(speed=1.0)


def test_what_policies_made_of_a_job_is_part_of_its_checkpoint(alone: None, tmp_path: pathlib.Path) -> None:
    def job() -> tuple[pl.Checkpoint, pl.ElasticDataLoader, pl.Context]:
        loader = pl.ElasticDataLoader(range(40), batch_size=4)
        context = pl.attach(loader=loader)
        return pl.checkpoint(loader=loader, directory=tmp_path, every=1), loader, context

    saved, loader, context = job()
    context.set_batch_size(10)
    for _ in range(3):
        world.begin_step()
    assert loader.elastic.batch_size == 10
    saved.step()
    saved.wait()
    pl.detach()
    saved, loader, context = job()
    assert saved.restored and context.step == 3
    assert [len(batch) for batch in loader] == [10] * 4
    pl.detach()
