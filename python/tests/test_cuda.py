"""CUDA tensors, where there is a GPU: every collective, the streams around it, and training."""

from __future__ import annotations

import json

import pytest
from conftest import PROGRAMS, run_ranks

torch = pytest.importorskip("torch")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_every_check_holds_for_tensors_of_a_gpu() -> None:
    problems = []
    for place, rank in enumerate(run_ranks(2, PROGRAMS / "on_gpu.py")):
        assert rank.code == 0, rank.errors
        lines = [line for line in rank.output.splitlines() if line.startswith("OUTCOMES ")]
        outcomes = json.loads(lines[0].removeprefix("OUTCOMES "))
        problems += [f"rank {place}, {name}: {problem}" for name, problem in outcomes.items() if problem]
    assert not problems, "\n".join(problems)
