"""How far our critical path of a profiler's trace agrees with one that somebody else marked in it.

    python bench/overlay.py TRACE MARKED

MARKED is the same trace in which events of the critical path have `"critical"` among their `args`, as Holistic Trace Analysis
writes it. Events are compared one by one: a piece of our path agrees where an event of that name, on that thread or stream and
around that time, is marked. Time in which nothing was recorded belongs to no event and is left out. Printed are the share of
our path's time that lies in marked events, the share of the marked events' own time that lies on our path, and what differs.

Exit codes: 0 compared, 1 error, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

#: Microseconds by which times may differ: files round them.
ROUNDED = 1.0
#: Names that are printed of what differs.
MOST_NAMES = 12


class Event(NamedTuple):
    """An event of a thread or a stream; times in microseconds."""

    lane: str
    name: str
    begin: float
    end: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path, help="as the profiler wrote it")
    parser.add_argument("marked", type=pathlib.Path, help="the same, with the critical path marked")
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND", "paceline"), help="the command")
    options = parser.parse_args()
    try:
        begin = min(event["ts"] for event in events_of(options.trace) if is_work(event))
        marked = [of_profiler(one) for one in events_of(options.marked) if is_work(one) and is_marked(one)]
        ours = path_of(options.paceline, options.trace, begin)
    except (OSError, ValueError, KeyError, subprocess.CalledProcessError) as problem:
        print(f"overlay.py: {problem}", file=sys.stderr)
        return 1
    if not ours or not marked:
        print("overlay.py: there is no critical path to compare", file=sys.stderr)
        return 1
    compare(ours, marked)
    return 0


def compare(ours: list[Event], marked: list[Event]) -> None:
    marked_by, ours_by = by_place(marked), by_place(ours)
    missed = [piece for piece in ours if not any(holds(event, piece) for event in marked_by[piece.lane, piece.name])]
    say("our path", ours, missed, "marked events")
    own = innermost(marked)
    missed = [event for event in own if not any(holds(event, piece) for piece in ours_by[event.lane, event.name])]
    say("the marked path", own, missed, "events of ours")


def by_place(events: list[Event]) -> dict[tuple[str, str], list[Event]]:
    """By where they happened and what they are called."""
    found: dict[tuple[str, str], list[Event]] = collections.defaultdict(list)
    for event in events:
        found[event.lane, event.name].append(event)
    return found


def holds(event: Event, piece: Event) -> bool:
    """Whether a piece lies inside an event, but for rounding."""
    return event.begin - ROUNDED <= piece.begin and piece.end <= event.end + ROUNDED


def innermost(events: list[Event]) -> list[Event]:
    """Those that have no others inside, so that nothing counts twice."""
    found = []
    by_lane = collections.defaultdict(list)
    for event in events:
        by_lane[event.lane].append(event)
    for lane in by_lane.values():
        lane.sort(key=lambda event: (event.begin, -event.end))
        following = [*lane[1:], None]
        found += [one for one, after in zip(lane, following) if after is None or after.begin >= one.end]
    return found


def say(what: str, events: list[Event], others: list[Event], where: str) -> None:
    def milliseconds(some: list[Event]) -> float:
        return sum(event.end - event.begin for event in some) / 1e3

    whole, out = milliseconds(events), milliseconds(others)
    print(
        f"{100 * (1 - out / whole):.2f} % of {whole:.1f} ms and {len(events) - len(others)} of {len(events)} "
        f"pieces of {what} lie in {where}"
    )
    names: collections.Counter[str] = collections.Counter()
    for event in others:
        names[event.name] += event.end - event.begin
    for name, microseconds in names.most_common(MOST_NAMES):
        print(f"  {microseconds / 1e3:.3f} ms: {name}")


def path_of(command: str, trace: pathlib.Path, begin: float) -> list[Event]:
    """The pieces of our critical path that are work, at the times of the trace, whose first work begins at `begin`."""
    with tempfile.TemporaryDirectory() as folder:
        written = pathlib.Path(folder, "ours.json.gz")
        arguments = [command, "replay", str(trace), "--trace-out", str(written)]
        subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True)
        events = events_of(written)
    bars = [one for one in events if one["ph"] == "X" and one["cat"] != "step"]
    begin -= min(one["ts"] for one in bars)
    lanes = {one["tid"]: lane(one["args"]["name"]) for one in events if one["name"] == "thread_name"}
    return [
        Event(lanes[one["tid"]], one["name"], begin + one["ts"], begin + one["ts"] + one["dur"])
        for one in bars
        if is_marked(one)
    ]


def lane(name: str) -> str:
    """`thread 7 (python)` is what the profiler numbers 7, and so is `device 0 stream 7`."""
    found = re.match(r"(?:thread|device \d+ stream) (\S+)", name)
    return found[1] if found else name


def of_profiler(event: dict[str, Any]) -> Event:
    return Event(str(event["tid"]), event["name"], event["ts"], event["ts"] + event["dur"])


def is_marked(event: dict[str, Any]) -> bool:
    return bool(event.get("args", {}).get("critical"))


def is_work(event: dict[str, Any]) -> bool:
    return event["ph"] == "X" and event.get("cat") in WORK


#: Categories of PyTorch's profiler in which something is done.
WORK = {"cpu_op", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset"}


def events_of(path: pathlib.Path) -> list[dict[str, Any]]:
    opened = gzip.open(path) if path.suffix == ".gz" else path.open("rb")
    with opened as file:
        return json.load(file)["traceEvents"]


if __name__ == "__main__":
    sys.exit(main())
