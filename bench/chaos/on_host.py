"""What runs on one host of a testbed during a chaos run: the coordinator on the first, a worker on each other one. Whatever is killed is
started again, as a cluster would, until it ends by itself.

    paceline-testbed run --hosts 5 --rate 1gbit -- python bench/chaos/on_host.py --folder DIR --store DIR --least 2 -- PROGRAM...
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import time

#: Where the coordinator listens on its host.
PORT = 29400

#: Seconds until something that was killed is started again.
AGAIN = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="for logs")
    parser.add_argument("--store", required=True, help="the coordinator's")
    parser.add_argument("--least", type=int, default=1)
    parser.add_argument("--paceline", default="paceline")
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    host, workers = int(os.environ["TESTBED_HOST"]), int(os.environ["TESTBED_HOSTS"]) - 1
    coordinator = f"{os.environ['TESTBED_ADDRESSES'].split(',')[0]}:{PORT}"
    if host == 0:
        command = [
            options.paceline, "coordinator", "--listen", coordinator, "--size", str(workers), "--elastic",
            f"{options.least}:{workers}", "--store", options.store,
        ]  # fmt: skip
    else:
        command = options.program
    variables = {"PACELINE_COORDINATOR": coordinator, "WORLD_SIZE": str(workers), "PACELINE_HOST": f"host{host}"}
    with (options.folder / f"host{host}.log").open("ab") as log:
        while True:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables})
            if host == 0:
                (options.folder / "coordinator.pid").write_text(str(process.pid))
            code = process.wait()
            if code == 0:
                return 0
            time.sleep(AGAIN)


if __name__ == "__main__":
    sys.exit(main())
