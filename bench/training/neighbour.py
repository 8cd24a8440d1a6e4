"""Others' traffic on a testbed: the last host of each rack is not the job's, and the one of the last rack loads that rack's uplink, both ways,
with those of all other racks."""

from __future__ import annotations

import os
import socket
import threading
import time

PORT = 29900
#: Handed over at a time.
PIECE = 1 << 16
#: Seconds in which neighbours find each other.
PATIENCE = 60.0


def here(racks: int) -> bool:
    """Whether this host is a neighbour. If not, the testbed's variables are made to count hosts without them."""
    addresses, host = os.environ["TESTBED_ADDRESSES"].split(","), int(os.environ["TESTBED_HOST"])
    together = len(addresses) // racks
    if host % together == together - 1:
        return True
    workers = [address for place, address in enumerate(addresses) if place % together != together - 1]
    os.environ.update(
        TESTBED_HOST=str(host - host // together), TESTBED_HOSTS=str(len(workers)), TESTBED_ADDRESSES=",".join(workers)
    )
    return False


def load(racks: int, flows: int, seconds_until: float, seconds: float) -> None:
    """Wait, then send and receive over so many connections to each other rack for so long."""
    begin = time.monotonic() + seconds_until
    addresses = os.environ["TESTBED_ADDRESSES"].split(",")
    if os.environ["TESTBED_ADDRESS"] == addresses[-1]:
        with socket.create_server((addresses[-1], PORT), backlog=128) as server:
            server.settimeout(PATIENCE)
            connections = [server.accept()[0] for _ in range((racks - 1) * flows)]
    else:
        connections = [_connected(addresses[-1]) for _ in range(flows)]
    time.sleep(max(0.0, begin - time.monotonic()))
    threads = [
        threading.Thread(target=move, args=(connection, begin + seconds)) for connection in connections for move in (_send, _receive)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in connections:
        connection.close()


def _connected(address: str) -> socket.socket:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=10)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _send(connection: socket.socket, end: float) -> None:
    connection.settimeout(None)
    piece = bytes(PIECE)
    try:
        while time.monotonic() < end:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        # The other has ended.
        return


def _receive(connection: socket.socket, _end: float) -> None:
    try:
        while connection.recv(PIECE):
            pass
    except OSError:
        return
