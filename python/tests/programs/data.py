"""Trains on nothing and notes the samples of each step; see `test_data.py`.

``data.py FOLDER STEPS BATCH WORKERS`` goes on from the position in FOLDER, if there is one, for so many steps or to the end
of the second epoch, with so many processes that fetch ahead, and leaves its own position there.
"""

from __future__ import annotations

import json
import pathlib
import sys

import quick  # noqa: F401, I001
import paceline.torch as pl

SAMPLES = 230


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    steps, batch, workers = map(int, sys.argv[2:])
    pl.init()
    loader = pl.ElasticDataLoader(
        range(SAMPLES), batch, seed=5, num_workers=workers, persistent_workers=workers > 0
    )
    position = folder / "position.json"
    before = json.loads(position.read_text()) if position.exists() else None
    # Nobody writes before all have read.
    pl.barrier()
    if before is not None:
        loader.load_state_dict(before)
    with (folder / f"used-by-{pl.rank()}.jsonl").open("a") as used:
        for epoch, samples in steps_of(loader, steps):
            used.write(json.dumps([epoch, samples, loader.weight]) + "\n")
    if pl.rank() == 0:
        position.write_text(json.dumps(loader.state_dict()))
    pl.shutdown()


def steps_of(loader: pl.ElasticDataLoader, steps: int):
    for epoch in loader.epochs(2):
        for batch in loader:
            yield epoch, batch.tolist() if loader.weight else []
            steps -= 1
            if steps == 0:
                return
            if steps % 5 == 0:
                # As a policy would: what was fetched ahead is of the wrong size.
                loader.elastic.batch_size += 1


if __name__ == "__main__":
    main()
