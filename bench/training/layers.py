"""Measures how long each layer of a model computes, forward and backward, and writes it as a profile.

    python bench/training/layers.py --out profiles --note "H200"      # needs a GPU, torchvision and transformers

A layer is a module with parameters of its own. Its forward time is from its start to the start of the next layer, its
backward time from the gradient of the layer after it to its own: what has no parameters counts to the layer before.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics

import torch
import workloads
from cell import REAL

STEPS, WARMUP = 20, 5


class Marks:
    """Moments on the GPU's own clock."""

    def __init__(self) -> None:
        self.events: list[tuple[str, torch.cuda.Event]] = []

    def mark(self, name: str) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.events.append((name, event))

    def gaps(self) -> dict[str, float]:
        """Seconds between each mark and the next, under the name of the first."""
        found: dict[str, float] = {}
        for (name, begun), (_, ended) in zip(self.events, self.events[1:]):
            found[name] = found.get(name, 0.0) + begun.elapsed_time(ended) / 1e3
        return found


def profile(workload: workloads.Workload) -> list[dict]:
    model = workload.model()
    layers = {name: module for name, module in model.named_modules() if list(module.parameters(recurse=False))}
    forward, backward = Marks(), Marks()
    order: list[str] = []
    for name, module in layers.items():
        module.register_forward_pre_hook(lambda *_, name=name: (order.append(name), forward.mark(name))[0])
        last = list(module.parameters(recurse=False))[0]
        last.register_post_accumulate_grad_hook(lambda _, name=name: backward.mark(name))
    optimizer = workload.optimizer(model)
    forwards: dict[str, list[float]] = {}
    backwards: dict[str, list[float]] = {}
    for step in range(WARMUP + STEPS):
        forward.events.clear()
        backward.events.clear()
        order.clear()
        loss = workload.loss(model)
        forward.mark("end")
        backward.mark("begin")
        loss.backward()
        torch.cuda.synchronize()
        if step >= WARMUP:
            for name, seconds in forward.gaps().items():
                forwards.setdefault(name, []).append(seconds)
            # The time before a gradient is that of its own layer.
            names = [name for name, _ in backward.events]
            for name, seconds in zip(names[1:], _between(backward)):
                backwards.setdefault(name, []).append(seconds)
        optimizer.step()
        optimizer.zero_grad()
    counted: set[torch.nn.Parameter] = set()
    found = []
    for name in dict.fromkeys(order):
        # One that is used twice is synchronised once, for the layer that needs it first.
        fresh = [one for one in layers[name].parameters(recurse=False) if one not in counted]
        counted.update(fresh)
        found.append(
            {
                "name": name,
                "tensors": [parameter.numel() for parameter in fresh],
                "forward": round(statistics.median(forwards[name]), 9),
                "backward": round(statistics.median(backwards.get(name, [0.0])), 9),
            }
        )
    return found


def _between(marks: Marks) -> list[float]:
    events = [event for _, event in marks.events]
    return [begun.elapsed_time(ended) / 1e3 for begun, ended in zip(events, events[1:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--note", default="", help="where it was measured")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, batch in REAL.items():
        layers = profile(workloads.load(name, batch, 0))
        about = f"batch {batch}, bfloat16 autocast, PyTorch {torch.__version__}, {options.note}"
        # A layer a line: short, and easy to compare.
        rows = ",\n".join(f"  {json.dumps(layer)}" for layer in layers)
        text = f'{{"name": {json.dumps(name)}, "about": {json.dumps(about)}, "layers": [\n{rows}\n]}}\n'
        (options.out / f"{name}.json").write_text(text)
        total = sum(layer["forward"] + layer["backward"] for layer in layers)
        print(f"{name}: {len(layers)} layers, {1e3 * total:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
