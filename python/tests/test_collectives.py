"""Each collective, on real processes, against its expectation."""

from __future__ import annotations

import json
import sys

import pytest
from conftest import PROGRAMS, run_ranks

sys.path.insert(0, str(PROGRAMS))
pytest.importorskip("torch")
import collectives  # noqa: E402


@pytest.fixture(scope="module", params=[2, 3])
def outcomes(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    ranks = run_ranks(request.param, PROGRAMS / "collectives.py")
    found = []
    for rank in ranks:
        assert rank.code == 0, rank.errors
        lines = [line for line in rank.output.splitlines() if line.startswith("OUTCOMES ")]
        found.append(json.loads(lines[0].removeprefix("OUTCOMES ")))
    return found


@pytest.mark.parametrize("check", collectives.CHECKS)
def test_collective(outcomes: list[dict[str, str]], check: str) -> None:
    problems = [f"rank {rank}: {outcome[check]}" for rank, outcome in enumerate(outcomes) if outcome[check]]
    assert not problems, "\n".join(problems)
