"""All scripts of a folder under all tuners on real links: one table.

    sudo -E python bench/training/scenarios.py --out results
    sudo -E python bench/training/scenarios.py --out results --at-once 7

Each scenario is one `tuning.py` on a testbed of its own, with the job given here; what it measured, said and drew is kept in --out, and
what is there already is not measured again. Played layers over slow links keep less than one core busy, so that several scenarios may run at once
where there are cores enough. The table goes to standard output.

Exit codes: 0 all measured, 1 error, 3 a scenario failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

#: Where scripts are that name what they suit.
SCRIPTS = pathlib.Path(__file__).parent / "scripts"

#: The job that scripts without a rate in their name are written for: a step takes about 0.1 s.
JOB = ("--profile", "resnet50", "--slow", "2", "--shrink", "10", "--hosts", "4", "--rate", "1gbit", "--length", "85")

#: Scripts that need more than that.
MORE = {"slow-rack": ("--racks", "2")}

NAMES = "slow-host,slow-rack,bursts,steps,straggler,second-job,ramp"


def main() -> int:
    options = arguments().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = [name.strip() for name in options.scripts.split(",") if name.strip()]
    try:
        with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
            found = dict(zip(names, pool.map(lambda name: measured(options, name), names)))
    except KeyboardInterrupt:
        return 130
    except OSError as problem:
        print(f"scenarios.py: {problem}", file=sys.stderr)
        return 1
    print(table(found))
    return 3 if None in found.values() else 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="where scenarios are kept (JSON, SVG, logs of tuners)")
    parser.add_argument("--scripts", default=NAMES, help=f"[{NAMES}]")
    parser.add_argument("--at-once", type=int, default=1, help="scenarios that run at the same time [1]")
    parser.add_argument("--methods", default="autobyte,replay,bo", help="[autobyte,replay,bo]")
    parser.add_argument("--start", default="15", help="seconds until workers have met [15]")
    parser.add_argument("--probe", default="12", help="seconds for a fixed setting in a phase [12]")
    parser.add_argument("--testbed", default="paceline-testbed", help="the paceline-testbed command")
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND", "paceline"), help="the command")
    return parser


def measured(options: argparse.Namespace, name: str) -> dict[str, Any] | None:
    """One scenario; from its file, where it was measured before."""
    file = options.out / f"{name}.json"
    if not file.exists():
        command = [
            sys.executable, str(pathlib.Path(__file__).parent / "tuning.py"), *JOB, *MORE.get(name, ()),
            "--script", str(SCRIPTS / f"{name}.txt"), "--json", str(file), "--logs", str(options.out / name),
            "--plot", str(file.with_suffix(".svg")), "--methods", options.methods, "--start", options.start, "--probe", options.probe,
            "--testbed", options.testbed, "--paceline", options.paceline,
        ]  # fmt: skip
        with open(options.out / f"{name}.txt", "w") as said:
            code = subprocess.run(command, stdout=said, stderr=subprocess.STDOUT).returncode
        print(f"{name}: {'measured' if code == 0 else f'ended with {code}'}", file=sys.stderr, flush=True)
    return json.loads(file.read_text()) if file.exists() else None


def table(found: dict[str, dict[str, Any] | None]) -> str:
    """Headroom, and what each method recovers of it."""
    methods = list(dict.fromkeys(method for one in found.values() if one is not None for method in one["methods"]))
    lines = [
        f"| script | headroom over best single, over beginning | {' | '.join(methods)} |",
        f"|---|---|{'---|' * len(methods)}",
    ]
    for name, one in found.items():
        if one is None:
            lines.append(f"| {name} | not measured |{' |' * len(methods)}")
            continue
        yardstick, rows = one["yardstick"], one["methods"]
        cells = [worth(rows[method]) if method in rows else "" for method in methods]
        headroom = f"{percent(yardstick['headroom'])}, {percent(yardstick['headroom_over_beginning'])}"
        lines.append(f"| {name} | {headroom} | {' | '.join(cells)} |")
    lines.append(
        "\nUnder each method: steps over the beginning; (share of the headroom over the best single setting, share of that over "
        "the beginning); the worst end of a phase against its best setting; switches."
    )
    return "\n".join(lines)


def worth(row: dict[str, Any]) -> str:
    shares = ", ".join("–" if row[name] is None else f"{100 * row[name]:.0f} %" for name in ("recovered", "recovered_from_beginning"))
    worst = percent(min(row["end_shares"]) - 1)
    return f"{percent(row['over_beginning'])}; ({shares}); {worst}; {row['switches']}"


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


if __name__ == "__main__":
    sys.exit(main())
