"""What it costs a step that its job is watched: two jobs that are alike, by turns, of which one has a page that somebody reads.

    python bench/training/watching.py [--pairs 8] [--rounds 5] [--steps 10] [--workers 2]

Needs `paceline` in the path. Jobs are started anew for every pair, another one first each time: two that are alike differ by where the
system puts them. Prints the median over rounds of how much longer a step of the watched job took, and of how much more
processor time worker 0 took for it, in percent, with the middle half of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator

#: Seconds between two questions of a page.
ASKED_EVERY = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--obey", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.obey:
        obey(pathlib.Path(options.obey), options.width, options.layers)
        return
    longer, dearer, alone, read = [], [], [], 0
    for pair in range(options.pairs):
        with contextlib.ExitStack() as stack:
            jobs = {watched: stack.enter_context(job(options, watched)) for watched in (pair % 2 == 0, pair % 2 == 1)}
            for number in range(options.rounds + 1):
                times = {watched: jobs[watched].make(options.steps) for watched in (number % 2 == 0, number % 2 == 1)}
                # The first meets memory that nobody has touched.
                if number > 0:
                    alone.append(times[False][0] / options.steps)
                    longer.append(100 * (times[True][0] / times[False][0] - 1))
                    dearer.append(100 * (times[True][1] / times[False][1] - 1))
            read += jobs[True].bytes_read
    step_ms = round(1e3 * statistics.median(alone), 2)
    found = {"step_ms": step_ms, "longer_percent": middle(longer), "processor_percent": middle(dearer), "bytes_read": read}
    print(json.dumps(found))


class Job:
    """One that makes steps when it is told to."""

    def __init__(self, folder: pathlib.Path) -> None:
        # Whoever opens a pipe waits for the other end.
        self._orders = open(folder / "orders", "w", buffering=1)  # noqa: SIM115
        self._answers = open(folder / "answers")  # noqa: SIM115
        self.bytes_read = 0

    def make(self, steps: int) -> tuple[float, float]:
        """So many steps: seconds that passed, and those of processors."""
        print(steps, file=self._orders)
        wall, processor = self._answers.readline().split()
        return float(wall), float(processor)

    def end(self) -> None:
        """No further steps."""
        print(0, file=self._orders)

    def read(self, link: str, over: threading.Event) -> None:
        """Ask as a page does, until it is over."""
        origin, token = link.split("/?token=")
        after = 0
        while not over.wait(ASKED_EVERY):
            with contextlib.suppress(OSError):
                answer = urllib.request.urlopen(f"{origin}/feed?token={token}&after={after}", timeout=5).read()
                self.bytes_read += len(answer)
                after = json.loads(answer)["last"]


@contextlib.contextmanager
def job(options: argparse.Namespace, watched: bool) -> Iterator[Job]:
    """A job until the end of the block, with its page read if it is watched."""
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        os.mkfifo(folder / "orders")
        os.mkfifo(folder / "answers")
        program = [sys.executable, __file__, "--obey", place, "--width", str(options.width), "--layers", str(options.layers)]
        command = ["paceline", "run", "-n", str(options.workers), *(["--ui"] if watched else []), "--", *program]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        said, over = process.stderr, threading.Event()
        assert said is not None
        try:
            link = next(found[0] for line in said if (found := re.search(r"http://\S+", line))) if watched else ""
            # What else it says is not to fill the pipe.
            threading.Thread(target=said.read, daemon=True).start()
            made = Job(folder)
            if watched:
                threading.Thread(target=made.read, args=(link, over), daemon=True).start()
            yield made
            made.end()
            if process.wait(timeout=60) != 0:
                raise SystemExit("a worker failed")
        finally:
            over.set()
            process.terminate()
            process.wait()


def obey(folder: pathlib.Path, width: int, layers: int) -> None:
    """Be a worker: worker 0 is told how many steps to make, and says how long they took."""
    import torch
    import torch.distributed as dist
    from recording import Linear, step_of, timed

    import paceline.torch as pl

    dist.init_process_group("paceline")
    pl.init()
    step = step_of("optimizer", Linear(width, layers))
    leads = dist.get_rank() == 0
    orders = open(folder / "orders") if leads else None  # noqa: SIM115
    answers = open(folder / "answers", "w", buffering=1) if leads else None  # noqa: SIM115
    while True:
        steps = torch.zeros(1, dtype=torch.int64)
        if orders:
            steps[0] = int(orders.readline())
        dist.broadcast(steps, 0)
        if steps.item() == 0:
            break
        step()
        dist.barrier()
        wall, processor = timed(step, int(steps.item()))
        if answers:
            print(wall, processor, file=answers)
    dist.destroy_process_group()


def middle(values: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": round(median, 2), "from": round(low, 2), "to": round(high, 2)}


if __name__ == "__main__":
    main()
