"""FSDP2 on the backend, against FSDP2 on Gloo."""

from __future__ import annotations

import sys

import pytest
from conftest import PROGRAMS, long, run_ranks

sys.path.insert(0, str(PROGRAMS))
torch = pytest.importorskip("torch")


@pytest.mark.parametrize("size", [2, long(4)])
def test_sharded_training_agrees_with_gloo(size: int) -> None:
    from paceline.torch import versions

    if versions.number(torch.__version__) < (2, 8):
        pytest.skip("FSDP2 of this PyTorch does not replicate shards in CPU memory")
    import fsdp

    for rank in run_ranks(size, PROGRAMS / "fsdp.py"):
        assert rank.code == 0, rank.errors
        held = [line for line in rank.output.splitlines() if line.startswith("HELD")]
        assert held == [f"HELD {case.__name__}" for case in fsdp.CASES]
