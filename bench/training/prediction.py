"""What the replay predicts for a training step against what it then takes: a job is recorded under one setting, and its
step predicted under others (strategy, partition and credit, rate, number of hosts), which are then measured.

    sudo -E python bench/training/prediction.py --profile resnet50 --slow 50 --rates 500mbit,1gbit --hosts 4,8

Layers are played by timers on the hosts of a testbed, one worker each, as in `run.py`. The first rate and the first
number of hosts are those of the recording. Beside the replay stands a prediction that takes each operation as one
transfer of its bytes after another. The table goes to standard output, everything to --json.

Exit codes: 0 all cells measured, 1 error, 2 wrong usage, 3 a cell failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
import tempfile
from typing import Any

import bounds
import profiles
from cell import WAYS, CellError
from trial import Trial, payload

#: What is recorded.
RECORDED = {"strategy": "ring", "partition": "1MiB", "credit": "1MiB"}


@dataclasses.dataclass(frozen=True)
class Case:
    """Conditions of a step."""

    hosts: int
    rate: str
    strategy: str
    partition: str
    credit: str

    def settings(self) -> str:
        return f"--strategy {self.strategy} --partition {self.partition} --credit {self.credit}"

    def question(self) -> str:
        return f"workers={self.hosts}+strategy={self.strategy}+partition={self.partition}+credit={self.credit}"


def main() -> int:
    options = arguments().parse_args()
    try:
        (profile,) = profiles.read(options.profile)
        rates = [rate.strip() for rate in options.rates.split(",")]
        for rate in rates:
            bounds.bits_per_second(rate)
        hosts = [int(number) for number in options.hosts.split(",")]
        pairs = [tuple(pair.split("/")) for pair in options.pairs.split(",") if pair]
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError("--pairs: write PARTITION/CREDIT, such as 256KiB/1MiB")
    except ValueError as problem:
        print(f"prediction.py: {problem}", file=sys.stderr)
        return 2
    trial = Trial(profile.slowed(options.slow), options.slow, options.testbed, options.paceline)
    try:
        return Bench(options, trial, profile.name).run(hosts, rates, options.strategies.split(","), pairs)
    except KeyboardInterrupt:
        trial.stop()
        return 130
    except (CellError, OSError) as problem:
        print(f"prediction.py: {problem}", file=sys.stderr)
        return 1


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", required=True, help="to play: NAME, FILE or FILE#MODEL")
    parser.add_argument("--slow", type=float, default=50.0, help="how many times slower than it was measured [50]")
    parser.add_argument("--rates", default="1gbit", help="of each host's wire; the first is recorded [1gbit]")
    parser.add_argument("--hosts", default="4", help="numbers of hosts; the first is recorded [4]")
    parser.add_argument("--strategies", default="ring,hierarchical,parameter_server,double_tree", help="to predict")
    parser.add_argument("--pairs", default="256KiB/256KiB,4MiB/4MiB", help="partition and credit, to predict")
    parser.add_argument("--way", default="optimizer", choices=WAYS[2:], help="to train [optimizer]")
    parser.add_argument("--testbed", default="paceline-testbed", help="the paceline-testbed command")
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND", "paceline"), help="the command")
    parser.add_argument("--json", type=pathlib.Path, help="where everything measured goes")
    return parser


class Bench:
    def __init__(self, options: argparse.Namespace, trial: Trial, name: str) -> None:
        self._options, self._trial, self._name = options, trial, name

    def run(self, hosts: list[int], rates: list[str], strategies: list[str], pairs: list[Any]) -> int:
        recorded = Case(hosts[0], rates[0], *RECORDED.values())
        cases = [dataclasses.replace(recorded, strategy=strategy) for strategy in strategies]
        cases += [dataclasses.replace(recorded, partition=partition, credit=credit) for partition, credit in pairs]
        cases += [dataclasses.replace(recorded, rate=rate) for rate in rates[1:]]
        cases += [dataclasses.replace(recorded, hosts=number) for number in hosts[1:]]
        rows: list[dict[str, Any]] = []
        failed = 0
        way = self._options.way
        with tempfile.TemporaryDirectory(prefix="paceline-prediction-") as name:
            folder = pathlib.Path(name)
            self._say(f"recording {recorded}")
            self._trial.record(folder, recorded.hosts, recorded.rate, recorded.settings(), way)
            for place, case in enumerate(dict.fromkeys(cases)):
                self._say(f"[{place + 1}/{len(cases)}] {case}")
                try:
                    measured = self._trial.step(case.hosts, case.rate, case.settings(), way)
                except CellError as problem:
                    failed += 1
                    self._say(f"failed: {problem}")
                    continue
                rows.append({**dataclasses.asdict(case), "measured_s": measured, **self._predict(folder, case)})
                if self._options.json:
                    self._options.json.write_text(json.dumps(rows, indent=1))
        print(table(self._name, self._options.slow, rows))
        return 3 if failed else 0

    def _predict(self, folder: pathlib.Path, case: Case) -> dict[str, float]:
        rate = f"{payload(case.rate) / 1e6:.3f}mbit"
        report = self._trial.command("replay", str(folder), "--bandwidth", rate, "--what-if", case.question())
        (answer,) = report["what_if"]
        return {
            "predicted_s": answer["step_ms"] / 1e3,
            "lumped_s": answer["lumped_step_ms"] / 1e3,
            "recorded_error": report["recorded_error"],
            "simulated_error": report["predicted_error"],
        }

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def table(name: str, slow: float, rows: list[dict[str, Any]]) -> str:
    """Measured and predicted, and how many of them are near."""
    lines = [
        "| model | hosts, rate | strategy | partition, credit | measured | predicted | off | one transfer after another "
        "|",
        "|---|---|---|---|---|---|---|---|",
    ]
    errors = []
    for row in rows:
        off, lumped = (row[which] / row["measured_s"] - 1 for which in ("predicted_s", "lumped_s"))
        errors.append(abs(off))
        lines.append(
            f"| {name}, {slow:g}x | {row['hosts']}, {row['rate']} | {row['strategy']} "
            f"| {row['partition']}, {row['credit']} "
            f"| {row['measured_s']:.3f} s | {row['predicted_s']:.3f} s | {100 * off:+.1f} % | {100 * lumped:+.1f} % |"
        )
    if errors:
        near = sum(error <= 0.05 for error in errors)
        lines.append(f"\nWithin 5 %: {near} of {len(errors)}. Worst: {100 * max(errors):.1f} %.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
