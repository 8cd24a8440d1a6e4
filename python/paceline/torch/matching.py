"""Names under which the ranks of a group find each other's operations."""

from __future__ import annotations

import threading

from paceline.world import Membership

#: Names are used again after so many operations: the engine counts the uses of a name, so they still
#: match, and it remembers this many names for each group at most. Operations of a group that are posted
#: out of order (staged ones are posted later) must not be further apart than this.
WINDOW = 1024


class Matching:
    """Numbers the collectives of a group. Whatever a rank's n-th collective is, it meets the n-th of the
    others, so that different ones meet too, and the engine can say how they differ."""

    def __init__(self, membership: Membership, group: str) -> None:
        # A group that is made again under its old name does not meet what was left of the old one.
        generation = membership.generation(group)
        again = "" if generation == 1 else f" ({generation})"
        self.prefix = f"group {group}{again}"
        self._names = [f"{self.prefix}, collective {number}" for number in range(WINDOW)]
        self._count = 0
        self._since = 0
        self._lock = threading.Lock()

    def next(self, since: int = 0) -> str:
        """The name of the next collective. They are counted anew for each ``since``: whoever came to the job counts from then on."""
        with self._lock:
            if since != self._since:
                self._since, self._count = since, 0
            name = self._names[self._count % WINDOW]
            self._count += 1
        return name
