"""The scheduled optimizer against DDP, and what it must bear."""

from __future__ import annotations

import json
import pathlib
import subprocess
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


def test_what_a_plan_sends_together_is_bit_equal_with_ddp(paceline_command: str, tmp_path: pathlib.Path) -> None:
    # The same cases, with gradients in threes: unused ones, tied ones, accumulation, scalers and misuse among them.
    names = subprocess.run(
        (sys.executable, PROGRAMS / "optimizer.py", "names"), capture_output=True, text=True, check=True
    ).stdout.split()
    groups = [names[first : first + 3] for first in range(0, len(names), 3)]
    plan = tmp_path / "plan.toml"
    plan.write_text(f"[settings]\nstrategy = \"recursive_doubling\"\n\n[fusion]\ngroups = {json.dumps(groups)}\n")
    launch = (paceline_command, "run", "-n", "4", "--plan", str(plan), "--")
    run = run_launcher(*launch, sys.executable, PROGRAMS / "optimizer.py", "paceline")
    assert run.returncode == 0, run.stderr
    assert held(run.stdout) == cases()
    assert "tensors that the model does not have" in run.stderr


def test_as_many_passes_make_a_step_as_a_plan_wants_to_accumulate(
    paceline_command: str, tmp_path: pathlib.Path
) -> None:
    plan = tmp_path / "plan.toml"
    for text, passes in (("[batch]\naccumulate = 3\n", 3), ("", 1)):
        plan.write_text(text)
        launch = (paceline_command, "run", "-n", "2", "--plan", str(plan), "--")
        run = run_launcher(*launch, sys.executable, PROGRAMS / "accumulated.py")
        assert run.returncode == 0, run.stderr
        assert run.stdout.count(f"passes {passes}") == 2
