"""FSDP2 on the backend, against FSDP2 on Gloo."""

from __future__ import annotations

import sys

import pytest
from conftest import PROGRAMS, run_ranks

sys.path.insert(0, str(PROGRAMS))
torch = pytest.importorskip("torch")


@pytest.mark.parametrize("size", [2, 4])
def test_sharded_training_agrees_with_gloo(size: int) -> None:
    import fsdp

    for rank in run_ranks(size, PROGRAMS / "fsdp.py"):
        assert rank.code == 0, rank.errors
        assert rank.output.split() == [word for case in fsdp.CASES for word in ("HELD", case.__name__)]
