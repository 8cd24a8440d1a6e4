"""Hosts in racks, as the topology that a job is told of: entries of a file that `paceline topology` reads, or of `[settings.topology]` in a plan."""

from __future__ import annotations

from collections.abc import Sequence


def described(hosts: int, rate: str, uplinks: Sequence[str]) -> str:
    """`host0`, `host1` and so on, with a wire of this rate each, spread over as many racks as there are uplinks."""

    def link(rate: str) -> str:
        return f'{{ rate = "{rate}", latency = "20us" }}'

    lines = [f"uplinks = [{', '.join(map(link, uplinks))}]", f"memory = {link('10gbit')}", "hosts = ["]
    for host in range(hosts):
        lines.append(f'  {{ name = "host{host}", rack = {host * len(uplinks) // hosts}, link = {link(rate)} }},')
    return "\n".join([*lines, "]", ""])
