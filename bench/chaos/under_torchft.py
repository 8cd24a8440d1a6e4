"""The task under torchft: each process is a replica group of one, a lighthouse says who takes part, and a replica that comes back
takes the state of another."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import task
import torch
import torch.distributed as dist
from torchft import Manager, Optimizer, ProcessGroupGloo


def main() -> None:
    parser = task.arguments(__doc__)
    parser.add_argument("--replica", required=True)
    parser.add_argument("--lighthouse", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    log = task.Log(options.folder)
    # On a testbed hosts have addresses and no names; its checkpoints are offered under the host's name whatever one asks for.
    address = os.environ.get("TESTBED_ADDRESS", "127.0.0.1")
    socket.gethostname = lambda: address
    # Each group has a store of its own.
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    model = task.model()
    inner = task.optimizer(model)

    def load(state: dict) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1, rank=0, world_size=1, replica_id=options.replica,
        store_addr=address, store_port=store.port, hostname=address, lighthouse_addr=options.lighthouse,
        timeout=timedelta(seconds=10), quorum_timeout=timedelta(seconds=30), connect_timeout=timedelta(seconds=10),
    )  # fmt: skip
    optimizer = Optimizer(manager, inner)
    samples = task.Samples(options.steps * task.BATCH)
    end = task.End(options)
    while not end.reached(manager.current_step()):
        optimizer.zero_grad()
        # Which samples are whose is known when the quorum is.
        manager.wait_quorum()
        step, rank, size = manager.current_step(), manager.participating_rank(), manager.num_participants()
        first = manager.batches_committed() + (rank or 0)
        numbers = list(range(first * task.BATCH, (first + 1) * task.BATCH))
        points, classes = samples.batch(numbers)
        time.sleep(options.pause)
        loss = torch.nn.functional.cross_entropy(model(points), classes)
        loss.backward()
        # Its DDP ends survivors with an assertion where a peer is lost (0.2.0, PyTorch 2.13).
        for work in [manager.allreduce(parameter.grad) for parameter in model.parameters()]:
            work.wait()
        optimizer.step()
        if manager.current_step() > step and rank is not None:
            log.step(step, size, loss.item(), numbers)
    log.end(model)
    manager.shutdown()


if __name__ == "__main__":
    main()
