"""What is in flight when something ends is told so, or finished for those who need it."""

from __future__ import annotations

import pytest
from conftest import PROGRAMS, run_ranks

pytest.importorskip("torch")

#: What rank 0 must have seen.
ENDINGS = {
    "abort_and_destroy": ["abort", "wait in another thread", "destroy"],
    "exit_with_something_in_flight": ["exit"],
    "leave_what_others_need": ["what others need"],
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_stays_in_flight_for_ever(ending: str) -> None:
    ranks = run_ranks(2, PROGRAMS / "endings.py", ending, limit=90.0)
    for rank in ranks:
        assert rank.code == 0, rank.errors
    assert ranks[0].output.splitlines() == [f"HELD {what}" for what in ENDINGS[ending]], ranks[0].errors
