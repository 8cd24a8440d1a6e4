"""Speed over time as a drawing: a line for each method, and dashed the best fixed setting of each phase.

    python bench/training/curves.py results/slow-host.json --out slow-host.svg

It draws what `tuning.py --json` measured on real links, as `paceline tune --plot` draws what it played. How it was measured is
not known here.

Exit codes: 0 drawn, 1 error.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import statistics
import sys
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

#: Steps before and after a step that its speed is smoothed over, by their median: a change of conditions stays an edge.
SMOOTHED = 3

WIDTH, HEIGHT = 960.0, 440.0
LEFT, RIGHT, TOP, BOTTOM = 60.0, 20.0, 46.0, 76.0

#: Those that methods have in `paceline tune --method all --plot`.
COLOURS = {
    "default": "#999999", "grid": "#3b82c4", "random": "#2f9e6e", "bo": "#7a5cc4", "autobyte": "#d2603a", "replay": "#d9a400",
}  # fmt: skip

#: Names in the legend are so far apart, and letters of labels so wide at most.
APART, LETTER = 130.0, 6.0

#: An axis has so many numbers at most.
NUMBERS = 9

Point = tuple[float, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, help="what tuning.py wrote (JSON)")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="where the drawing goes (SVG)")
    parser.add_argument("--title", help="[the name of the results]")
    options = parser.parse_args()
    try:
        found = json.loads(options.results.read_text())
        options.out.write_text(draw(options.title or options.results.stem, found))
    except (OSError, ValueError, KeyError) as problem:
        print(f"curves.py: {options.results}: {problem!r}", file=sys.stderr)
        return 1
    return 0


def draw(title: str, found: dict[str, Any]) -> str:
    """An SVG file of what `tuning.py` found."""
    phases = found["phases"]
    end = phases[-1]["end"]
    lines = {
        method: [point for point in speeds(one["ends"], one["begin"]) if point[0] <= end]
        for method, one in found["methods"].items()
    }
    best = [found["fixed"][setting][place] for place, setting in enumerate(found["yardstick"]["best"])]
    fastest = max([*best, *(speed for line in lines.values() for _, speed in line)])

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / end

    def y(speed: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - speed / fastest)

    def text(left: float, base: float, words: str, more: str = "") -> str:
        return f'<text x="{left:.1f}" y="{base:.1f}" {more}>{escape(words)}</text>'

    def polyline(points: list[Point], more: str) -> str:
        written = " ".join(f"{x(at):.1f},{y(speed):.1f}" for at, speed in points)
        return f'<polyline points="{written}" fill="none" {more}/>'

    shown = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>',
        text(LEFT, 18, title, 'font-size="14"'),
    ]
    for phase, changed in zip(phases, changes(phases)):
        left, bottom = x(phase["begin"]), HEIGHT - BOTTOM
        shown.append(f'<line x1="{left:.1f}" y1="{TOP:g}" x2="{left:.1f}" y2="{bottom:g}" stroke="#dddddd"/>')
        if x(phase["end"]) - left >= LETTER * len(changed):
            shown.append(text(left + 3, TOP - 6, changed, 'font-size="11" fill="#777777"'))
    for speed in numbers(fastest):
        shown.append(text(LEFT - 6, y(speed) + 4, f"{speed:g}", 'text-anchor="end"'))
    for at in numbers(end):
        shown.append(text(x(at), HEIGHT - BOTTOM + 18, f"{at:g}", 'text-anchor="middle"'))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    shown.append(text(14, middle, "steps a second", f'text-anchor="middle" transform="rotate(-90 14 {middle:g})"'))
    shown.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 36, "seconds", 'text-anchor="middle"'))
    corners = [(phase[side], speed) for phase, speed in zip(phases, best) for side in ("begin", "end")]
    shown.append(polyline(corners, 'stroke="black" stroke-dasharray="5 3"'))
    shown += [polyline(line, f'stroke="{COLOURS[method]}" stroke-width="1.6"') for method, line in lines.items()]
    names = {"best of each phase": "black", **{method: COLOURS[method] for method in lines}}
    for place, (name, colour) in enumerate(names.items()):
        shown.append(text(LEFT + APART * place, HEIGHT - 14, name, f'fill="{colour}"'))
    return "\n".join([*shown, "</svg>", ""])


def speeds(ends: list[float], begin: float) -> Iterator[Point]:
    """Steps a second in the middle of each step that counts, smoothed."""
    steps = [(sooner, later) for sooner, later in zip(ends, ends[1:]) if sooner >= begin]
    lengths = [later - sooner for sooner, later in steps]
    for place, step in enumerate(steps):
        around = lengths[max(0, place - SMOOTHED) : place + SMOOTHED + 1]
        yield statistics.mean(step), 1 / statistics.median(around)


def numbers(most: float) -> list[float]:
    """Round ones from 0 on, up to this."""
    tenfold = 10.0 ** math.floor(math.log10(most / NUMBERS))
    apart = next(tenfold * factor for factor in (1, 2, 5, 10, 20) if most / (tenfold * factor) < NUMBERS)
    return [apart * place for place in range(int(most / apart) + 1)]


def changes(phases: list[dict[str, Any]]) -> Iterator[str]:
    """What each phase changes, in short."""
    known = 0
    for phase in phases:
        lines, known = phase["lines"][known:], len(phase["lines"])
        named = [line["what"] for line in lines]
        what = named[0] if len(named) == 1 else f"{named[0]} … {named[-1]}" if named else ""
        yield f"{what} {lines[-1]['how']}" if lines else ""


if __name__ == "__main__":
    sys.exit(main())
