"""How far our critical path of a profiler's trace agrees with one that somebody else marked in it.

    python bench/overlay.py TRACE MARKED

MARKED is the same trace in which events of the critical path have `"critical"` among their `args`, as Holistic Trace Analysis
writes it. Events are compared by name: printed is the share of our path's time that lies in events whose name is marked,
and every name of ours that is not.

Exit codes: 0 compared, 1 error, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pathlib
import subprocess
import sys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path, help="as the profiler wrote it")
    parser.add_argument("marked", type=pathlib.Path, help="the same, with the critical path marked")
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND", "paceline"), help="the command")
    options = parser.parse_args()
    try:
        marked = names_marked(options.marked)
        done = subprocess.run(
            [options.paceline, "replay", str(options.trace), "--json"], capture_output=True, text=True, check=True
        )
    except (OSError, ValueError, KeyError, subprocess.CalledProcessError) as problem:
        print(f"overlay.py: {problem}", file=sys.stderr)
        return 1
    path = json.loads(done.stdout)["critical_path"]
    whole = sum(part["milliseconds"] for part in path)
    others = [part for part in path if part["name"] not in marked]
    inside = whole - sum(part["milliseconds"] for part in others)
    print(f"{100 * inside / whole:.2f} % of {whole:.1f} ms lie in events that are marked")
    for part in others:
        print(f"  {part['milliseconds']:.3f} ms: {part['name']}")
    return 0


def names_marked(path: pathlib.Path) -> set[str]:
    opened = gzip.open(path) if path.suffix == ".gz" else path.open("rb")
    with opened as file:
        events = json.load(file)["traceEvents"]
    return {event["name"] for event in events if event.get("args", {}).get("critical")}


if __name__ == "__main__":
    sys.exit(main())
