"""What runs on one host of a testbed during a chaos run: what coordinates on the first, a worker on each other one. Whatever is killed is
started again, as a cluster would, until it ends by itself.

    paceline-testbed run --hosts 5 --rate 1gbit -- python bench/chaos/on_host.py --folder DIR --first COMMAND -- PROGRAM...

In both commands `{coordinator}` stands for the address and port at which the first host listens, `{address}` for the host's own address, and
`{name}` for a name that no other process has.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shlex
import subprocess
import sys
import time

#: Where what coordinates listens on its host.
PORT = 29400

#: Seconds until something that was killed is started again.
AGAIN = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="for logs")
    parser.add_argument("--first", required=True, help="what runs on the first host")
    parser.add_argument("--notices", action="store_true", help="workers may leave before the end")
    parser.add_argument("program", nargs="+", help="what runs on the others")
    options = parser.parse_args()
    host, workers = int(os.environ["TESTBED_HOST"]), int(os.environ["TESTBED_HOSTS"]) - 1
    coordinator = f"{os.environ['TESTBED_ADDRESSES'].split(',')[0]}:{PORT}"
    variables = {
        "PACELINE_COORDINATOR": coordinator, "WORLD_SIZE": str(workers), "PACELINE_HOST": f"host{host}",
        "GLOO_SOCKET_IFNAME": "eth0",
    }  # fmt: skip
    started = 0
    with (options.folder / f"host{host}.log").open("ab") as log:
        while True:
            means = {"coordinator": coordinator, "address": os.environ["TESTBED_ADDRESS"], "name": f"host{host}-{started}"}
            command = shlex.split(options.first) if host == 0 else options.program
            process = subprocess.Popen([part.format(**means) for part in command], stdout=log, stderr=log, env={**os.environ, **variables})
            started += 1
            if host == 0:
                (options.folder / "coordinator.pid").write_text(str(process.pid))
            code = process.wait()
            # One that left because its machine is to be taken away has another after it, until the job is told to end.
            if code == 0 and (host == 0 or not options.notices or (options.folder / "last").exists()):
                return 0
            time.sleep(AGAIN)


if __name__ == "__main__":
    sys.exit(main())
