"""A rank that fails is named by the others, within a bound."""

from __future__ import annotations

import pytest
from conftest import PROGRAMS, run_ranks

pytest.importorskip("torch")

#: What rank 0 must say, and how many of the two ranks must fail.
FAILURES = {
    "raise_in_the_middle_of_backward": ("worker 1 is gone", 2),
    "exit_in_the_middle_of_backward": ("worker 1 is gone", 2),
    "disagree_about_the_model": ("worker 1 is gone", 2),
    "disagree_about_the_number_of_parameters": ("inconsistent", 2),
    "wait_longer_than_the_timeout": ("1 s", 1),
    "miss_a_monitored_barrier": ("Rank 1 failed to pass monitoredBarrier in 1000 ms", 1),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_failure_is_told(failure: str) -> None:
    text, failing = FAILURES[failure]
    first, second = run_ranks(2, PROGRAMS / "failures.py", failure, limit=60.0)
    assert first.code == 1, first.errors
    assert text in first.errors, first.errors
    assert [first.code == 0, second.code == 0].count(False) == failing, second.errors
    if failure == "raise_in_the_middle_of_backward":
        assert "this rank cannot go on" in second.errors
