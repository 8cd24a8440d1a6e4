"""The scheduled optimizer against DDP, and what it must bear."""

from __future__ import annotations

import sys

import pytest
from conftest import PROGRAMS, run_launcher, run_ranks

pytest.importorskip("torch")


def held(output: str) -> set[str]:
    return {line.split("HELD ")[1] for line in output.splitlines() if "HELD " in line}


def cases() -> set[str]:
    text = (PROGRAMS / "optimizer.py").read_text().split("CASES = (")[1].split(")")[0]
    return {name.strip() for name in text.split(",") if name.strip()}


def test_two_workers_are_bit_equal_with_ddp_on_gloo() -> None:
    for rank in run_ranks(2, PROGRAMS / "optimizer.py", "gloo"):
        assert rank.code == 0, rank.errors
        assert held(rank.output) == cases()


def test_four_workers_are_bit_equal_with_ddp_on_our_backend(paceline_command: str) -> None:
    # Sums in the same order whatever the place in a buffer: buckets and single tensors must agree.
    launch = (paceline_command, "run", "-n", "4", "--strategy", "recursive_doubling", "--")
    run = run_launcher(*launch, sys.executable, PROGRAMS / "optimizer.py", "paceline")
    assert run.returncode == 0, run.stderr
    assert held(run.stdout) == cases()
