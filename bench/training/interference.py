"""What the policy `interference` makes of a neighbour: somebody takes most of a rack's uplink while a job trains, and workers vote for
another strategy.

    sudo -E python bench/training/interference.py --profile resnet50 --shrink 10 --slow 4 --hosts 6 --racks 2 --rate 200mbit --left 120mbit

With --watch instead it is made by `--watch-links` in place of a policy: a job that trains by `shuffle`, told where hosts sit, marks the uplink as
contended, and divides its groups around it. With --flows others' traffic is real: the last host of each rack is not the job's, and the one of the last rack loads
its uplink, both ways, over so many connections to each other rack.

    sudo -E python bench/training/interference.py --watch --from shuffle --flows 6 --hosts 12 --racks 4 --rate 100mbit --uplink 150mbit

Layers are played by timers on the hosts of a testbed, one worker each. The job begins with --from; from second --at until second --until the uplink
of the last rack carries what --left says. It is run with the policy and without. Printed: the speed before, after, and from which step after the
change on it is above --share of the speed before, by the median of five steps; and the speed when the others have gone. Everything goes to --json.

Exit codes: 0 measured, 1 error, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
from typing import Any

import bounds
import profiles
import racks
from cell import START, CellError
from tuning import WARMUP, Bench, Line

#: Steps that make a speed.
STEPS = 5


def main() -> int:
    options = arguments().parse_args()
    try:
        (profile,) = profiles.read(options.profile)
        bounds.bits_per_second(options.rate)
        bounds.bits_per_second(options.left)
    except (ValueError, OSError) as problem:
        print(f"interference.py: {problem}", file=sys.stderr)
        return 2
    until = options.until if options.until is not None else options.length
    together = options.hosts // options.racks * bounds.bits_per_second(options.rate)
    uplink, link = options.uplink or f"{together / 1e6:.0f}mbit", f"rack{options.racks - 1}"
    changes = [Line(options.at, link, options.left)]
    if until < options.length:
        changes.append(Line(until, link, uplink))
    bench = Bench(options, profile.slowed(options.slow).shrunk(options.shrink), changes)
    found: dict[str, Any] = {"options": {key: str(value) for key, value in vars(options).items()}}
    try:
        with tempfile.TemporaryDirectory(prefix="paceline-interference-") as folder:
            topology = pathlib.Path(folder) / "topology.toml"
            topology.write_text(racks.described(options.hosts, options.rate, [uplink] * options.racks))
            told = {"PACELINE_WATCH_LINKS": "1"} if options.watch else {"PACELINE_POLICY": options.policy}
            flows = {"racks": options.racks, "flows": options.flows, "at": options.at, "seconds": until - options.at}
            for name, extra in (("without", {}), ("with", told)):
                print(f"{name} it: {options.length:.0f} s", file=sys.stderr, flush=True)
                script, neighbour = ((), flows) if options.flows else (tuple(changes), None)
                more = f"--topology {topology}"
                seen = bench.report(f"{options.before} 1MiB 4MiB", script, options.length, extra, more, neighbour)
                found[name] = {**seen, **figures(seen["ends"], options.at, until, options.share)}
                print(line_of(name, found[name], options.share), flush=True)
    except KeyboardInterrupt:
        bench.stop()
        return 130
    except (CellError, OSError) as problem:
        print(f"interference.py: {problem}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="resnet50", help="to play: NAME, FILE or FILE#MODEL [resnet50]")
    parser.add_argument("--slow", type=float, default=4.0, help="how many times slower than it was measured [4]")
    parser.add_argument("--shrink", type=float, default=10.0, help="how many times fewer bytes it has [10]")
    parser.add_argument("--hosts", type=int, default=6, help="[6]")
    parser.add_argument("--racks", type=int, default=2, help="[2]")
    parser.add_argument("--rate", default="200mbit", help="of each host's wire [200mbit]")
    parser.add_argument("--uplink", help="of each rack's uplink [what the job's hosts carry together]")
    parser.add_argument("--flows", type=int, default=0, help="connections of others to each other rack, instead of --left [0]")
    parser.add_argument("--watch", action="store_true", help="watch links instead of attaching a policy")
    parser.add_argument("--left", default="120mbit", help="what others leave of an uplink [120mbit]")
    parser.add_argument("--at", type=float, default=30.0, help="seconds until they come [30]")
    parser.add_argument("--until", type=float, help="seconds until they go [they stay]")
    parser.add_argument("--length", type=float, default=75.0, help="seconds in all [75]")
    parser.add_argument("--from", dest="before", default="ring", help="the strategy at the beginning [ring]")
    parser.add_argument("--policy", default="interference:share=0.9,window=5,strategies=ring+hierarchical:racks", help="what is attached")
    parser.add_argument("--share", type=float, default=0.95, help="of the speed before that counts as recovered [0.95]")
    parser.add_argument("--start", type=float, default=START, help=f"seconds until workers have met [{START:g}]")
    parser.add_argument("--testbed", default="paceline-testbed", help="the paceline-testbed command")
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND", "paceline"), help="the command")
    parser.add_argument("--json", type=pathlib.Path, help="where everything measured goes")
    parser.set_defaults(real=False)
    return parser


def figures(ends: list[float], at: float, until: float, share: float) -> dict[str, Any]:
    """Milliseconds of a step before others came, at the end of their stay and of the run, and after how many steps it was as fast as before."""
    ends = [end for end in ends if end >= 0][WARMUP:]
    lengths = [(sooner, later - sooner) for sooner, later in zip(ends, ends[1:])]
    before = [length for begin, length in lengths if begin + length < at]
    after = [length for begin, length in lengths if begin >= at and begin + length <= until]
    alone = [length for begin, length in lengths if begin >= until]
    if len(before) < STEPS or len(after) < STEPS:
        raise CellError(f"{len(before)} steps before the change and {len(after)} after it; give a longer --at or --length")
    usual = statistics.median(before)
    windows = [statistics.median(after[place : place + STEPS]) for place in range(len(after) - STEPS + 1)]
    recovered = next((place for place, length in enumerate(windows) if usual / length >= share), None)
    return {
        "before_ms": 1e3 * usual, "worst_ms": 1e3 * max(windows), "end_ms": 1e3 * statistics.median(after[len(after) // 2 :]),
        "recovered_after_steps": recovered, "alone_ms": 1e3 * statistics.median(alone[len(alone) // 2 :]) if alone else None,
    }  # fmt: skip


def line_of(name: str, found: dict[str, Any], share: float) -> str:
    step = found["recovered_after_steps"]
    when = "never" if step is None else f"{step} steps after the change"
    marks = "".join(f"; at {at:.0f} s marked: {', '.join(links) or 'nothing'}" for at, links in found["marked"])
    kept = 100 * found["before_ms"] / found["end_ms"]
    gone = "" if found["alone_ms"] is None else f"; when the others had gone {found['alone_ms']:.0f} ms"
    return (
        f"{name:<8} before {found['before_ms']:.0f} ms, worst {found['worst_ms']:.0f} ms, at the end {found['end_ms']:.0f} ms ({kept:.0f} % of the "
        f"speed before); above {100 * share:.0f} %: {when}{gone}{marks}"
    )


if __name__ == "__main__":
    sys.exit(main())
