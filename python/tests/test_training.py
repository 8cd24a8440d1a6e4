"""Unmodified training scripts on the backend, against Gloo."""

from __future__ import annotations

import pathlib
import signal
import sys

import pytest
from conftest import EXAMPLES, PROGRAMS, long, run_launcher, run_ranks

pytest.importorskip("torch")

#: Scripts that know nothing of us but the backend's name.
UNMODIFIED = ("ddp_resnet", "ddp_gpt", "ddp_unused")


def digests(backend: str, size: int) -> list[str]:
    ranks = run_ranks(size, PROGRAMS / "ddp.py", backend, secret=False)
    for rank in ranks:
        # On a busy machine Gloo's threads sometimes outlive the process that is over, and abort it.
        assert rank.code == 0 or (backend == "gloo" and rank.code == -signal.SIGABRT), rank.errors
    found = [[line for line in rank.output.splitlines() if line.startswith("DIGEST")] for rank in ranks]
    assert all(one == found[0] for one in found), "replicas differ"
    assert len(found[0]) == 5
    return found[0]


def test_two_replicas_are_bit_equal_with_gloo() -> None:
    assert digests("paceline", 2) == digests("gloo", 2)


def test_four_replicas_are_bit_equal_with_each_other() -> None:
    digests("paceline", 4)


@pytest.mark.parametrize("example", UNMODIFIED)
def test_examples_learn_under_paceline_run(paceline_command: str, example: str) -> None:
    script = EXAMPLES / f"{example}.py"
    run = run_launcher(paceline_command, "run", "-n", "2", "--", sys.executable, script, "--steps", "8")
    assert run.returncode == 0, run.stderr
    losses = [float(line.split()[-1]) for line in run.stdout.splitlines() if "loss" in line]
    assert len(losses) == 8 and losses[-1] < losses[0], run.stdout


@pytest.mark.parametrize("example", [UNMODIFIED[0], *map(long, UNMODIFIED[1:])])
def test_examples_run_under_torchrun_and_warn_of_the_secret(example: str) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    run = run_launcher(*launcher, EXAMPLES / f"{example}.py", "--steps", "2")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("loss") == 2
    assert run.stderr.count("as private as that store") == 1


def test_horovod_scripts_port_by_their_import() -> None:
    for rank in run_ranks(2, PROGRAMS / "horovod.py"):
        assert rank.code == 0 and "HOROVOD OK" in rank.output, rank.errors


def test_a_horovod_script_learns_with_its_import_changed(tmp_path: pathlib.Path) -> None:
    script, checkpoint = EXAMPLES / "horovod_classifier.py", tmp_path / "checkpoint.pt"
    accuracies = []
    # The second run goes on from what the first one saved.
    for epochs in ("1", "3"):
        ranks = run_ranks(2, script, "--epochs", epochs, "--clip", "1", "--checkpoint", checkpoint)
        for rank in ranks:
            assert rank.code == 0, rank.errors
        accuracies += [float(line.split()[-1].rstrip("%")) for line in ranks[0].output.splitlines()]
    assert len(accuracies) == 3 and accuracies[-1] > 90.0, accuracies
