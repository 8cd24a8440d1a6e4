"""The task under Paceline's elastic jobs: survivors finish the step that a worker is lost in, and one that comes gets the state of
the others."""

from __future__ import annotations

import time

import task
import torch

import paceline.torch as pl
from paceline import world


def main() -> None:
    parser = task.arguments(__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    log = task.Log(options.folder)
    pl.init()
    model = task.model(options.width, options.layers)
    optimizer = pl.DistributedOptimizer(task.optimizer(model), model)
    loader = pl.ElasticDataLoader(task.Samples(options.samples or options.steps * task.BATCH), batch_size=task.BATCH)
    pl.elastic(model=model, optimizer=optimizer, loader=loader)
    membership = world.membership()
    watch(membership, log)
    # Steps count from 1 there.
    first, end = 1, task.End(options)
    made: tuple[object, ...] | None = None
    while not end.reached(membership.step - first):
        for batch in loader:
            step, size = membership.step - first, pl.size()
            if end.reached(step):
                break
            points, classes, dealt = batch
            # At the end of an epoch there may be none for this worker.
            numbers = dealt.tolist() if loader.weight else []
            log.dealt(numbers, loader.epoch)
            time.sleep(options.pause)
            loss = torch.nn.functional.cross_entropy(model(points), classes)
            # Only now is the step before in the parameters: until then its samples are dealt again if this worker dies.
            if made is not None:
                log.step(*made)
            (loss * loader.weight).backward()
            optimizer.step()
            optimizer.zero_grad()
            made = step, size, loss.item(), numbers, loader.epoch
    optimizer.drain()
    if made is not None:
        log.step(*made)
    log.end(model)
    pl.shutdown()


def watch(membership: world.Membership, log: task.Log) -> None:
    """Write down what it takes this worker when others come or go: when the first step with them had begun, how long it had waited with
    nothing in progress before, and until when it then gave its state to newcomers."""
    advance, share, begun = membership.advance, membership.sharer, [0.0]

    def shared() -> None:
        begun[0] = time.time()
        if share is not None:
            share()

    def advanced() -> None:
        before, begun[0] = membership.changes, 0.0
        advance()
        if membership.changes != before and (waited := membership.worker.last_gathering):
            over = time.time()
            log.line(changed=pl.size(), begun=begun[0] or over, settling=waited[0], still=waited[1], over=over)

    membership.sharer, membership.advance = shared, advanced  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
