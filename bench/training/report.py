"""What the measured times of the training benchmark mean: ratios, bounds, distances, and the tables that show them.

It is given results and runs nothing.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from bounds import PAYLOAD, Bound, bits_per_second, bound
from cell import ALONE, Cell
from profiles import Profile

TITLES = {
    "ddp-gloo": "DDP, Gloo",
    "ddp-paceline": "DDP, ours",
    "optimizer-fifo": "optimizer, FIFO",
    "optimizer": "optimizer, scheduled",
}

#: Computation and wire time are comparable where neither is more than this many times the other.
COMPARABLE = 2.0
#: How near the bound the scheduled optimizer should be there, and what scheduling may cost anywhere.
NEAR, COST = 0.10, 0.02
#: The share of its rate that a wire must carry for raw TCP, for a cell to be believed.
FAITHFUL = 0.9


@dataclasses.dataclass(frozen=True)
class Result:
    """A cell that was measured."""

    cell: Cell
    measured: dict[str, Any]
    #: What computes, as slow as it was.
    profile: Profile
    #: What raw TCP carried of the rate, where it was looked at.
    carried: float | None
    #: Seconds of a step in virtual time: `perfect`, and with the cell's settings `scheduled` and `fifo`.
    virtual: dict[str, float]

    @property
    def bound(self) -> Bound:
        return bound(self.profile, self.cell.hosts, PAYLOAD * bits_per_second(self.cell.rate))

    @property
    def computation(self) -> float:
        """As it was measured."""
        return self.measured["medians"].get(ALONE, self.profile.seconds)

    def seconds(self, way: str) -> float | None:
        return self.measured["medians"].get(way)

    def ratio(self, way: str, base: str) -> float | None:
        """How many times as fast as `base`: the median over rounds, so that a slow spell touches both sides."""
        seconds = self.measured["seconds"]
        if way not in seconds or base not in seconds:
            return None
        return statistics.median(one / other for one, other in zip(seconds[base], seconds[way]))

    @property
    def best(self) -> float | None:
        """The scheduled optimizer's step."""
        return self.seconds("optimizer")

    @property
    def comparable(self) -> bool:
        return 1 / COMPARABLE <= self.bound.ratio <= COMPARABLE

    def written(self) -> dict[str, Any]:
        """For a file: all that was measured, and what follows from it."""
        cell = dataclasses.asdict(self.cell)
        del cell["profile"]
        found = self.bound
        return {
            **cell,
            **self.measured,
            "about": self.profile.about,
            "raw_tcp_share": self.carried,
            "wire_seconds": found.wire,
            "wire_rate": f"shaped rate x {PAYLOAD:.4f}",
            "bound_seconds": found.step,
            "bound_at_any_layer_seconds": found.at_any_layer,
            "plain_bound_seconds": found.plain,
            "virtual_seconds": self.virtual,
            "hidden": {way: found.hidden(seconds, self.computation) for way, seconds in self._ways()},
            "distance": {way: found.distance(seconds) for way, seconds in self._ways()},
            "speedup_over_ddp_gloo": {way: self.ratio(way, "ddp-gloo") for way, _ in self._ways()},
            "speedup_over_fifo": self.ratio("optimizer", "optimizer-fifo"),
        }

    def _ways(self) -> list[tuple[str, float]]:
        return [(way, seconds) for way, seconds in self.measured["medians"].items() if way != ALONE]


def scaled_to(profile: Profile, computation: float) -> Profile:
    """A profile whose computation takes as long as was measured, for a real model on a machine of another speed."""
    return profile.slowed(computation / profile.seconds)


def time(seconds: float | None) -> str:
    """Three digits or so."""
    if seconds is None:
        return "-"
    if seconds >= 0.9995:
        return f"{seconds:.1f} s" if seconds >= 9.995 else f"{seconds:.2f} s"
    return f"{1e3 * seconds:.0f} ms" if seconds >= 0.0995 else f"{1e3 * seconds:.3g} ms"


def size(number: int) -> str:
    """Bytes as settings have them."""
    if number >= 1 << 63:
        return "unlimited"
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if number >> shift and not number & ((1 << shift) - 1):
            return f"{number >> shift} {unit}"
    return f"{number} B"


def _spread(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return "" if len(values) < 2 or f"{low:.3g}" == f"{high:.3g}" else f" [{time(low)}–{time(high)}]"


def _percent(share: float | None, signed: bool = False) -> str:
    return "-" if share is None else f"{100 * share:+.0f} %" if signed else f"{100 * share:.0f} %"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def line(result: Result) -> str:
    """A cell in a line."""
    words = [f"{TITLES[way]} {time(result.seconds(way))}" for way in TITLES if result.seconds(way) is not None]
    best = result.best
    distance = "" if best is None else f" ({_percent(result.bound.distance(best), signed=True)})"
    return f"{result.cell.name}: {', '.join(words)}; bound {time(result.bound.step)}{distance}"


def tables(results: Sequence[Result]) -> str:
    """Step times; and what they mean."""
    return f"{_step_times(results)}\n\n{_meanings(results)}\n"


def _step_times(results: Sequence[Result]) -> str:
    ways = [way for way in TITLES if any(way in result.measured["medians"] for result in results)]
    header = ["workload", "slower", "rate", "partition, credit", "computation", "wire", *(TITLES[way] for way in ways)]
    rows = []
    for result in results:
        seconds, settings = result.measured["seconds"], result.measured["settings"]
        row = [result.cell.workload, f"{result.cell.slow:g}x", result.cell.rate]
        row += [f"{size(settings['partition'])}, {size(settings['credit'])}"]
        row += [time(result.computation), time(result.bound.wire)]
        row += [time(result.seconds(way)) + _spread(seconds.get(way, [])) for way in ways]
        rows.append(row)
    return _aligned(header, rows)


def _meanings(results: Sequence[Result]) -> str:
    header = ["workload", "slower", "rate", "over DDP: ours", "FIFO", "scheduled", "over FIFO"]
    header += ["hidden: DDP", "scheduled", "plain", "bound", "distance", "at any layer", "distance", "virtual"]
    header += ["busy: DDP", "scheduled"]
    rows = []
    for result in results:
        found, best, gloo = result.bound, result.best, result.seconds("ddp-gloo")
        row = [result.cell.workload, f"{result.cell.slow:g}x", result.cell.rate]
        row += [_times(result.ratio(way, "ddp-gloo")) for way in ("ddp-paceline", "optimizer-fifo", "optimizer")]
        row += [_times(result.ratio("optimizer", "optimizer-fifo"))]
        row += [_percent(None if one is None else found.hidden(one, result.computation)) for one in (gloo, best)]
        row += [time(found.plain)]
        for limit in (found.step, found.at_any_layer):
            row += [time(limit), _percent(None if best is None else best / limit - 1, signed=True)]
        row += [time(result.virtual.get("perfect"))]
        row += [_percent(result.measured["busy"].get(way)) for way in ("ddp-gloo", "optimizer")]
        rows.append(row)
    return _aligned(header, rows)


def _aligned(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that reads well as it is, and as Markdown."""
    everything = [list(header), *map(list, rows)]
    widths = [max(len(row[place]) for row in everything) for place in range(len(header))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in everything]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def notes(results: Sequence[Result]) -> list[str]:
    """What the tables say, against what they should."""
    found = [
        "Medians over rounds, lowest and highest in brackets. Wire: bytes of a ring over the shaped rate x "
        f"{PAYLOAD:.3f} (TCP's payload). Hidden: 1 - (step - computation) / wire. Distance: the scheduled optimizer's, "
        "to the bound. Busy: of all processors of this machine, whoever used them."
    ]
    whole = [result for result in results if None not in (result.best, result.seconds("ddp-gloo"))]
    for base, title in (("ddp-gloo", "DDP over Gloo"), ("optimizer-fifo", "FIFO")):
        ratios = [(ratio, result) for result in results if (ratio := result.ratio("optimizer", base)) is not None]
        if ratios:
            ratio, result = max(ratios, key=lambda pair: pair[0])
            found.append(f"Largest gain over {title}: {ratio:.2f}x ({result.cell.name}).")
    behind = [result for result in whole if (result.ratio("optimizer", "ddp-gloo") or 1) < 1]
    if behind:
        found.append("Behind DDP over Gloo: " + _named(behind, "ddp-gloo"))
    costly = [result for result in results if (result.ratio("optimizer", "optimizer-fifo") or 1) < 1 / (1 + COST)]
    if costly:
        found.append(f"Scheduling costs more than {_percent(COST)}: " + _named(costly, "optimizer-fifo"))
    for result in results:
        if result.cell.hosts == 1 and (ratio := result.ratio("optimizer", ALONE)) is not None:
            found.append(f"{result.cell.name}: with one worker the hooks add {100 * (1 / ratio - 1):.1f} % to a step.")
    near = [result for result in results if result.comparable and result.best is not None]
    if near:
        pairs = [(result.best or 0.0, result.bound) for result in near]
        ends = sum(best <= (1 + NEAR) * limits.step for best, limits in pairs)
        layers = sum(best <= (1 + NEAR) * limits.at_any_layer for best, limits in pairs)
        found.append(
            f"Computation and wire time are within {COMPARABLE:g}x of each other in {len(near)} cells: {ends} of them "
            f"are within {_percent(NEAR)} of the bound, {layers} of the one at any layer."
        )
    unfaithful = {result.cell.rate: result.carried for result in results if (result.carried or 1) < FAITHFUL}
    for rate, carried in unfaithful.items():
        found.append(f"Do not believe {rate}: raw TCP carries {_percent(carried)} of it on this machine.")
    about = {result.cell.workload: result.profile.about for result in results if result.profile.forward_assumed}
    return [*found, *(f"{workload}: {text}." for workload, text in about.items())]


def _named(results: Iterable[Result], base: str) -> str:
    return ", ".join(f"{result.cell.name} ({_times(result.ratio('optimizer', base))})" for result in results) + "."
