"""Whatever goes wrong is told on every rank that is concerned, within a bound."""

from __future__ import annotations

import re

import pytest
from conftest import PROGRAMS, run_ranks

pytest.importorskip("torch")

#: What each rank must say, as a regular expression; nothing if it must end well.
GONE, RAISED = "worker 1 is gone", "ValueError: this rank cannot go on"
FAILURES: dict[str, list[str]] = {
    "raise_in_the_middle_of_backward": [GONE, RAISED, GONE],
    "raise_in_the_middle_of_backward_with_the_optimizer": [GONE, RAISED, GONE],
    "exit_in_the_middle_of_backward": [GONE, ""],
    "disagree_about_the_model": [GONE, r"sizes \[5, 4\] appears not to match"],
    "disagree_about_the_number_of_parameters": ["inconsistent", "inconsistent"],
    "have_an_old_pytorch": [r"PyTorch 2\.3\.1 is too old"] * 2,
    "ask_for_two_backends_in_one_group": [r"cannot share one with others \(cpu:gloo,cuda:paceline\)"] * 2,
    "wait_longer_than_the_timeout": ["1 s", ""],
    "miss_a_monitored_barrier": ["Rank 1 failed to pass monitoredBarrier in 1000 ms", ""],
}
#: How ranks end that say nothing.
CODES = {"exit_in_the_middle_of_backward": 7}


@pytest.mark.parametrize("failure", FAILURES)
def test_failure_is_told(failure: str) -> None:
    texts = FAILURES[failure]
    for rank, text in zip(run_ranks(len(texts), PROGRAMS / "failures.py", failure, limit=90.0), texts):
        assert rank.code == (1 if text else CODES.get(failure, 0)), rank.errors
        assert re.search(text, rank.errors, re.DOTALL), rank.errors
