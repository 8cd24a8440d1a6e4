"""What a plan is worth on real wires: a job is recorded, `paceline optimize` plans for it, and its step under the plan is
measured beside DDP's own buckets and fixed sizes of fusion, in turn.

    sudo -E python bench/training/planning.py --profile resnet50 --slow 50 --rate 1gbit --hosts 4

Layers are played by timers on the hosts of a testbed, one worker each, as in `run.py`. Fixed fusion sends neighbours together
until a group has so many bytes, as Horovod does; DDP's buckets are PyTorch's default. The table goes to standard output,
everything to --json.

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

import profiles
from cell import CellError
from trial import Trial, payload

#: PyTorch's own buckets, over Gloo and over our backend.
DDP = ("ddp-gloo", "ddp-paceline")

MEBIBYTE = 1 << 20


def main() -> int:
    options = arguments().parse_args()
    try:
        (profile,) = profiles.read(options.profile)
        sizes = [int(size) for size in options.fusion.split(",")]
        payload(options.rate)
    except ValueError as problem:
        print(f"planning.py: {problem}", file=sys.stderr)
        return 2
    slowed = profile.slowed(options.slow)
    trial = Trial(slowed, options.slow, options.testbed, options.paceline)
    try:
        with tempfile.TemporaryDirectory(prefix="paceline-planning-") as folder:
            found = measure(options, trial, slowed, sizes, pathlib.Path(folder))
    except KeyboardInterrupt:
        trial.stop()
        return 130
    except (CellError, OSError) as problem:
        print(f"planning.py: {problem}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    print(table(found))
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", required=True, help="to play: NAME, FILE or FILE#MODEL")
    parser.add_argument("--slow", type=float, default=50.0, help="how many times slower than it was measured [50]")
    parser.add_argument("--rate", default="1gbit", help="of each host's wire [1gbit]")
    parser.add_argument("--hosts", type=int, default=4, help="number of hosts [4]")
    parser.add_argument("--settings", default="", help="of the recording, such as '--strategy ring' [the defaults]")
    parser.add_argument("--fusion", default="1,4,16,64", help="fixed sizes to try, in MiB [1,4,16,64]")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured [3]")
    parser.add_argument("--testbed", default="paceline-testbed", help="the paceline-testbed command")
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND", "paceline"), help="the command")
    parser.add_argument("--json", type=pathlib.Path, help="where everything measured goes")
    return parser


def measure(
    options: argparse.Namespace, trial: Trial, profile: profiles.Profile, sizes: list[int], folder: pathlib.Path
) -> dict[str, Any]:
    hosts, rate = options.hosts, options.rate
    say("recording")
    trace = folder / "trace"
    trace.mkdir()
    trial.record(trace, hosts, rate, options.settings, "optimizer")
    plan = folder / "plan.toml"
    bandwidth = f"{payload(rate) / 1e6:.3f}mbit"
    planned = trial.command("optimize", str(trace), "--bandwidth", bandwidth, "-o", str(plan))
    names = {options.settings: "as recorded", f"--plan {plan}": "plan"}
    for size in sizes:
        file = folder / f"fusion-{size}.toml"
        file.write_text(fixed_fusion(profile, size * MEBIBYTE))
        names[f"{options.settings} --plan {file}".strip()] = f"fixed fusion, {size} MiB"
    say(f"measuring {', '.join(names.values())}")
    seconds = trial.settings(hosts, rate, tuple(names), options.rounds)
    say(f"measuring {', '.join(DDP)}")
    ddp = trial.ways(hosts, rate, options.settings, DDP, options.rounds)
    return {
        "profile": profile.name,
        "slow": options.slow,
        "hosts": hosts,
        "rate": rate,
        "seconds": {**{names[settings]: values for settings, values in seconds.items()}, **ddp},
        "predicted_before_s": planned["before_ms"] / 1e3,
        "predicted_after_s": planned["after_ms"] / 1e3,
        "search_s": planned["seconds"],
        "plan": plan.read_text(),
    }


def fixed_fusion(profile: profiles.Profile, most: int) -> str:
    """A plan file that sends gradients together, in the order in which they come, while they have `most` bytes at most."""
    groups: list[list[str]] = []
    held = most
    for place, layer in reversed(list(enumerate(profile.layers))):
        for number, elements in reversed(list(enumerate(layer.tensors))):
            bytes = profiles.BYTES_OF_ELEMENT * elements
            if held + bytes > most:
                groups.append([])
                held = 0
            held += bytes
            groups[-1].append(f"{place}.tensor{number}")
    return f"[fusion]\ngroups = {json.dumps([group for group in groups if len(group) > 1])}\n"


def table(found: dict[str, Any]) -> str:
    """A row for each way."""
    medians = {name: statistics.median(values) for name, values in found["seconds"].items()}
    plan = medians["plan"]
    lines = [
        f"{found['profile']}, {found['slow']:g}x, {found['hosts']} hosts, {found['rate']}; a plan found in "
        f"{found['search_s']:.1f} s",
        "",
        "| | step | lowest, highest | over the plan | predicted |",
        "|---|---|---|---|---|",
    ]
    predicted = {"as recorded": found["predicted_before_s"], "plan": found["predicted_after_s"]}
    for name, median in medians.items():
        values = found["seconds"][name]
        said = ""
        if name in predicted:
            said = f"{predicted[name]:.3f} s ({100 * (predicted[name] / median - 1):+.1f} %)"
        spread = f"{min(values):.3f}, {max(values):.3f}"
        lines.append(f"| {name} | {median:.3f} s | {spread} | {100 * (median / plan - 1):+.1f} % | {said} |")
    return "\n".join(lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
