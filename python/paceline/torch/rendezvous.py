"""How the workers of a PyTorch job find each other where the launcher is not ours: through PyTorch's store.

Rank 0 runs the coordinator on a free port and puts its address into the store, with a fresh secret if
the user gave none. This module posts nothing.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from paceline import world
from paceline._native import Coordinator, JoinError, Worker, fresh_secret, interface_address

_KEY = "paceline/coordinator"
#: How often this process has met others through a store. All members of a group have met the same
#: number of times, if they do the same; a key that was left from before is never read.
_meetings: dict[str, int] = {}


def join_store(store: dist.Store, rank: int, size: int, timeout: timedelta, purpose: str) -> Worker:
    """Join the workers that hold the same store, as ``rank`` of ``size``."""
    _meetings[purpose] = _meetings.get(purpose, 0) + 1
    key = f"{_KEY}/{_meetings[purpose]}"
    seconds = join_seconds(timeout)
    if rank == 0:
        return _host(store, key, size, timeout, seconds)
    try:
        told: dict[str, Any] = json.loads(store.get(key))
    except Exception as problem:
        raise JoinError(
            f"rank {rank} found no coordinator in PyTorch's store: {problem}; see whether rank 0 came"
        ) from problem
    if "problem" in told:
        raise JoinError(f"rank 0 could not start the coordinator: {told['problem']}")
    return Worker.join(told["coordinator"], rank, size, told["secret"], timeout=seconds)


def join_default_store() -> Worker:
    """Join through the store that torchrun's environment names, without a process group."""
    timeout = dist.default_pg_timeout
    store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
    store.set_timeout(timeout)
    return join_store(dist.PrefixStore("paceline", store), rank, size, timeout, "init")


def _host(store: dist.Store, key: str, size: int, timeout: timedelta, seconds: float | None) -> Worker:
    secret = None if world._has_secret() else fresh_secret()
    try:
        hosting = Coordinator(
            _listen_address(store), size, secret, seconds, max(timeout.total_seconds(), 1.0)
        )
    except Exception as problem:
        store.set(key, json.dumps({"problem": str(problem)}))
        raise
    if secret is not None and size > 1:
        warnings.warn(
            "PACELINE_SECRET is not set, so a fresh secret went into PyTorch's store: it is as private as "
            "that store. Set PACELINE_SECRET or PACELINE_SECRET_FILE on all ranks to keep it to yourself.",
            stacklevel=2,
        )
    store.set(key, json.dumps({"coordinator": hosting.address, "secret": secret}))
    return Worker.join(hosting.address, 0, size, secret, hosting, seconds)


def join_seconds(timeout: timedelta) -> float | None:
    """The bound on joining: the user's own, or PyTorch's."""
    return None if os.environ.get("PACELINE_JOIN_TIMEOUT") else max(timeout.total_seconds(), 1.0)


def _listen_address(store: dist.Store) -> str:
    """An address of this machine that the others can reach, and nobody else where all are here."""
    given = os.environ.get("PACELINE_INTERFACE")
    if given:
        return interface_address(given)
    size = os.environ.get("WORLD_SIZE")
    if size is not None and size == os.environ.get("LOCAL_WORLD_SIZE"):
        return "127.0.0.1"
    master = os.environ.get("MASTER_ADDR") or _store_host(store)
    if not master:
        return "127.0.0.1"
    address = _route_to(master)
    if ipaddress.ip_address(address).is_loopback and master not in ("localhost", "127.0.0.1", "::1"):
        warnings.warn(
            f"{master} is {address} on this machine, which other machines cannot reach; if the job spans "
            "machines, set PACELINE_INTERFACE to the interface or address that they can",
            stacklevel=2,
        )
    return address


def _store_host(store: Any) -> str | None:
    # A bound on a chain of prefixes that is two deep in practice.
    for _ in range(16):
        if hasattr(store, "underlying_store"):
            store = store.underlying_store
    return getattr(store, "host", None)


def _route_to(host: str) -> str:
    """The local address that packets to ``host`` would carry. Nothing is sent."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as problem:
        raise JoinError(
            f"cannot find a way to {host} (MASTER_ADDR): {problem}; set PACELINE_INTERFACE to an address "
            "of this machine that the others can reach"
        ) from problem
