"""Step times of a training job over shaped links, in several ways: PyTorch's DDP over Gloo, DDP over our backend,
and our optimizer, first come first served and scheduled.

    # real models, on a GPU
    sudo -E python bench/training/run.py --workload resnet50,bert-base --rates 4gbit,10gbit

    # layers played by timers, from profiles: a name or a file of ours, or a foreign one (FILE or FILE#MODEL)
    sudo -E python bench/training/run.py --profile vgg16,resnet50 --rates 500mbit,1gbit --slow 1,4,20 --search
    sudo -E python bench/training/run.py --profile gaps.json#bert --forward-share 0.3 --rates 1gbit

Hosts are network namespaces of this machine (`paceline-testbed`), one worker each. All ways of a cell are measured in
one run, alternating. Tables go to standard output, progress to standard error, all samples to --json.

Exit codes: 0 every cell was measured, 1 error, 2 wrong usage, 3 a cell failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import platform
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import bounds
import profiles
import report
import virtual
from cell import ALONE, REAL, START, WAYS, Cell, CellError, Testbed

#: A cell that takes this many times as long as it should has failed.
PATIENCE = 8.0


def main() -> int:
    options = arguments().parse_args()
    try:
        cells = list(chosen(options))
    except (profiles.ProfileError, ValueError) as problem:
        print(f"run.py: {problem}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    session = Session(options, len(cells))
    try:
        session.measure(cells)
    except KeyboardInterrupt:
        session.stop()
        session.finish()
        print("run.py: interrupted; the cells above are whole", file=sys.stderr)
        return 130
    session.finish()
    return 3 if session.failures else 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_argument_group("what is trained (several, separated by commas)")
    what.add_argument("--workload", "--workloads", default="", help=f"real models: {', '.join(REAL)}")
    what.add_argument("--batch", type=int, help="samples of a worker's step of a real model")
    what.add_argument("--profile", "--profiles", default="", help="profiles to play: NAME, FILE or FILE#MODEL")
    what.add_argument("--slow", default="1", help="how many times slower than they were measured [1]")
    share = f"forward pass over backward pass, where a profile has only the latter [{profiles.FORWARD_SHARE}]"
    what.add_argument("--forward-share", default=str(profiles.FORWARD_SHARE), help=share)

    where = parser.add_argument_group("over which network")
    where.add_argument("--rates", "--rate", required=True, help="of each host's wire, such as 500mbit,1gbit")
    where.add_argument("--hosts", type=int, default=4)
    where.add_argument("--no-check", action="store_true", help="do not look first what raw TCP carries")

    how = parser.add_argument_group("how")
    how.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)}")
    how.add_argument("--settings", default="", help="of the coordinator, such as '--partition 4MiB'; several: ;")
    how.add_argument("--search", action="store_true", help="choose the best partition and credit first")
    how.add_argument("--partitions", default="256KiB,1MiB,4MiB", help="to search [256KiB,1MiB,4MiB]")
    how.add_argument("--credits", default="256KiB,1MiB,4MiB", help="to search [256KiB,1MiB,4MiB]")
    how.add_argument("--search-steps", type=int, default=2)
    how.add_argument("--steps", type=int, default=3, help="of a turn [3]")
    how.add_argument("--rounds", type=int, default=3, help="turns of each way [3]")

    other = parser.add_argument_group("other")
    other.add_argument("--testbed", default="paceline-testbed", help="the paceline-testbed command")
    other.add_argument("--virtual", type=pathlib.Path, help=f"the replay's example: {virtual.BUILD}")
    other.add_argument("--json", type=pathlib.Path, help="where everything measured goes")
    return parser


def chosen(options: argparse.Namespace) -> Iterator[Cell]:
    """The cells that were asked for, or an error that says what is wrong with them."""
    ways = tuple(_listed(options.ways))
    unknown = [way for way in ways if way not in WAYS]
    if unknown or not ways:
        raise ValueError(f"--ways: choose of {', '.join(WAYS)}, not {', '.join(unknown) or 'none'}")
    if min(options.hosts, options.steps, options.rounds, options.search_steps) < 1:
        raise ValueError("there must be a host, a step and a round at least")
    rates = _listed(options.rates)
    for rate in rates:
        bounds.bits_per_second(rate)
    slows, shares = ([_positive(text) for text in _listed(many)] for many in (options.slow, options.forward_share))
    search = ()
    if options.search:
        pairs = itertools.product(_listed(options.partitions), _listed(options.credits))
        search = tuple(f"--partition {partition} --credit {credit}" for partition, credit in pairs)
    what: list[tuple[str, profiles.Profile | None, float]] = []
    for name in _listed(options.workload):
        if name not in REAL:
            raise ValueError(f"--workload: `{name}` is none of {', '.join(REAL)}; for a file, use --profile")
        what.append((name, None, 1.0))
    for place, slow in itertools.product(_listed(options.profile), slows):
        once: set[profiles.Profile] = set()
        for share in shares:
            # A profile that has forward times is the same with any share.
            fresh = [profile for profile in profiles.read(place, share) if profile not in once]
            once.update(fresh)
            for profile in fresh:
                assumed = profile.forward_assumed and len(shares) > 1
                what.append((profile.name + f", forward {share:g}" * assumed, profile.slowed(slow), slow))
    if not what:
        raise ValueError("name a --workload or a --profile")
    for (name, profile, slow), rate, settings in itertools.product(what, rates, options.settings.split(";")):
        batch = options.batch or REAL.get(name, 0)
        rest = (options.search_steps, ways, options.rounds, options.steps)
        yield Cell(name, profile, slow, batch, rate, options.hosts, settings.strip(), search, *rest)


class Session:
    """Cells, one after the other, and what came of them."""

    def __init__(self, options: argparse.Namespace, total: int) -> None:
        self._options, self._total = options, total
        self._testbed = Testbed(options.testbed)
        self._virtual = virtual.find(options.virtual)
        self._carried: dict[str, dict[str, Any] | None] = {}
        self._results: list[report.Result] = []
        self._said: set[str] = set()
        self.failures: list[tuple[str, str]] = []

    def measure(self, cells: Sequence[Cell]) -> None:
        if self._virtual is None:
            self._say(f"nothing is played in virtual time; `{virtual.BUILD}` makes that possible")
        for cell in cells:
            if cell.profile is not None and cell.profile.forward_assumed:
                self._say_once(f"{cell.workload}: {cell.profile.about}")
        guesses = [_guess(cell) for cell in cells]
        # How long it took, over how long it should have taken.
        factor, begun = 1.0, time.monotonic()
        for place, cell in enumerate(cells):
            left = factor * sum(guesses[place:])
            head = f"[{place + 1}/{self._total}] {cell.name}"
            self._say(f"{head}: about {max(left / 60, 0.1):.1f} min left")
            try:
                result = self._one(cell, guesses[place], head)
            except (CellError, OSError) as problem:
                self.failures.append((cell.name, str(problem)))
                self._say(f"{head} failed: {problem}")
            else:
                self._results.append(result)
                self._say(f"{head}: {report.line(result).partition(': ')[2]}")
            self._write()
            factor = (time.monotonic() - begun) / sum(guesses[: place + 1])

    def stop(self) -> None:
        self._testbed.stop()

    def finish(self) -> None:
        """The tables, and what failed."""
        if self._results:
            print(report.tables(self._results))
            print("\n".join(report.notes(self._results)))
        for name, why in self.failures:
            print(f"Not measured: {name}: {why.splitlines()[0]}")

    def _one(self, cell: Cell, guess: float, head: str) -> report.Result:
        carried = self._check(cell)

        def progress(step: str) -> None:
            if sys.stderr.isatty():
                print(f"\r\x1b[K{head}: {step}", end="", file=sys.stderr, flush=True)

        measured = self._testbed.measure(cell, 60 + PATIENCE * guess, progress)
        profile = cell.profile
        if profile is None:
            (profile,) = profiles.read(cell.workload)
            profile = report.scaled_to(profile, measured["medians"].get(ALONE, profile.seconds))
        share = None if carried is None else carried["share"]
        return report.Result(cell, measured, profile, share, self._predict(cell, profile, measured["settings"]))

    def _check(self, cell: Cell) -> dict[str, Any] | None:
        if self._options.no_check:
            return None
        if cell.rate not in self._carried:
            found = self._carried[cell.rate] = self._testbed.check(cell.hosts, cell.rate)
            busy = f"processors {100 * found['busy']:.0f} % busy, {100 * found['busy_before']:.0f} % before"
            self._say(f"raw TCP carries {100 * found['share']:.1f} % of {cell.rate}; {busy}")
        return self._carried[cell.rate]

    def _predict(self, cell: Cell, profile: profiles.Profile, settings: dict[str, Any]) -> dict[str, float]:
        if self._virtual is None:
            return {}
        rate = bounds.PAYLOAD * bounds.bits_per_second(cell.rate)
        player = virtual.Virtual(self._virtual, profile, cell.hosts, rate)
        try:
            return {
                "perfect": player.perfect(),
                "scheduled": player.with_settings(settings["partition"], settings["credit"], scheduled=True),
                "fifo": player.with_settings(settings["partition"], settings["credit"], scheduled=False),
            }
        except (RuntimeError, ValueError, TimeoutError, OSError) as problem:
            self._say(f"virtual time: {problem}")
            return {}

    def _write(self) -> None:
        """After each cell, so that an interrupted run leaves what it has."""
        if self._options.json is None:
            return
        everything = {
            "machine": {"processors": os.cpu_count(), "system": platform.platform()},
            "raw_tcp": self._carried,
            "cells": [result.written() for result in self._results],
            "failed": [{"cell": name, "why": why} for name, why in self.failures],
        }
        self._options.json.write_text(json.dumps(everything, indent=1) + "\n")

    def _say_once(self, what: str) -> None:
        if what not in self._said:
            self._say(what)
        self._said.add(what)

    def _say(self, what: str) -> None:
        start = "\r\x1b[K" if sys.stderr.isatty() else ""
        print(f"{start}{what}", file=sys.stderr, flush=True)


def _guess(cell: Cell) -> float:
    """Seconds that a cell takes, for an estimate: steps of ours near the bound, others with half of it hidden."""
    profile = cell.profile or profiles.read(cell.workload)[0]
    found = bounds.bound(profile, cell.hosts, bounds.PAYLOAD * bounds.bits_per_second(cell.rate))
    shown = {ALONE: found.computation, "optimizer": found.step}
    usual = found.plain + min(found.computation, found.wire) / 2
    return START + sum(cell.steps_of(way) * shown.get(way, usual) for way in WAYS)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(f"`{text}` must be a number above 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
