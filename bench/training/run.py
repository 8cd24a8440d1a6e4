"""Step times of a training job over shaped links, in several ways: PyTorch's DDP over Gloo, DDP over our backend,
and our optimizer, first come first served and scheduled.

    sudo -E python bench/training/run.py --workload resnet50 --rate 4gbit,10gbit        # real models need a GPU
    sudo -E python bench/training/run.py --workload profiles/vgg16.json --rate 500mbit  # layers played by timers

Hosts are network namespaces of this machine (`paceline-testbed`), one worker each. The table shows the median over
rounds, its ratio to DDP over Gloo, and the two bounds that nothing can beat: computation alone, and the wire time of
a ring. Everything measured goes to --json, one line a cell.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile

#: The share of a wire's rate that is payload: 1448 bytes in a frame of 1514.
PAYLOAD = 1448 / 1514
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits_per_second(rate: str) -> float:
    for unit, factor in UNITS.items():
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * factor
    raise SystemExit(f"a rate is a number and one of {', '.join(UNITS)}, not `{rate}`")


def cell(options: argparse.Namespace, workload: str, rate: str, settings: str, out: pathlib.Path) -> dict | None:
    folder = pathlib.Path(__file__).parent
    environment = {**os.environ, "PACELINE_SECRET": secrets.token_hex(32), "PYTHONWARNINGS": "ignore"}
    command = [options.testbed, "run", "--hosts", str(options.hosts), "--rate", rate, "--", sys.executable]
    command += [folder / "worker.py", "--workload", workload, "--settings", settings, "--out", out]
    for name in ("batch", "slow", "steps", "rounds", "warmup", "ways"):
        command += [f"--{name}", str(getattr(options, name))]
    before = out.read_text().count("\n") if out.exists() else 0
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True)
    lines = out.read_text().splitlines() if out.exists() else []
    if done.returncode or len(lines) <= before:
        print(f"{workload} at {rate} failed:\n{done.stderr[-600:]}{done.stdout[-600:]}", file=sys.stderr)
        return None
    return {"rate": rate, **json.loads(lines[-1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", required=True, help="names or profiles, separated by commas")
    parser.add_argument("--rate", required=True, help="rates of each host's wire, separated by commas")
    parser.add_argument("--settings", default="", help="of the coordinator; several, separated by ;")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--slow", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="alone,ddp-gloo,ddp-paceline,optimizer-fifo,optimizer")
    parser.add_argument("--testbed", default="paceline-testbed", help="the paceline-testbed command")
    parser.add_argument("--json", type=pathlib.Path, help="where everything measured goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "cells"
        print("| workload | rate | settings | computation | wire | " + " | ".join(options.ways.split(",")[1:]) + " |")
        print("|" + "---|" * (5 + len(options.ways.split(",")) - 1))
        for workload in options.workload.split(","):
            for rate in options.rate.split(","):
                for settings in options.settings.split(";"):
                    found = cell(options, workload, rate, settings.strip(), out)
                    if found is None:
                        continue
                    if options.json:
                        with options.json.open("a") as file:
                            file.write(json.dumps(found) + "\n")
                    print(row(found, options), flush=True)


def row(found: dict, options: argparse.Namespace) -> str:
    ways = options.ways.split(",")
    medians = found["medians"]
    wire = 2 * (options.hosts - 1) / options.hosts * 8 * found["bytes"] / (bits_per_second(found["rate"]) * PAYLOAD)
    gloo = medians.get("ddp-gloo")
    shown = []
    for way in ways[1:]:
        ratio = "" if gloo is None or way == "ddp-gloo" else f" ({gloo / medians[way]:.2f}x)"
        shown.append(f"{1e3 * medians[way]:.1f} ms{ratio}")
    name = pathlib.Path(found["workload"]).stem
    first = [name, found["rate"], found["asked"] or "default", f"{1e3 * medians[ways[0]]:.1f} ms", f"{1e3 * wire:.1f} ms"]
    return "| " + " | ".join(first + shown) + " |"


if __name__ == "__main__":
    main()
