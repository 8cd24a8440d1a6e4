"""PyTorch's own distributed tests, on Gloo and on our backend, side by side.

    python bench/conformance/run.py

The suite ships inside PyTorch's wheel (`torch.testing._internal.distributed.distributed_test`); it needs
`expecttest`. Its case tables and skips know only built-in backends, so our name is entered wherever Gloo's
stands, in a copy. Processes are kept from test to test, since starting PyTorch takes longer than most tests; what
fails is tried again in fresh ones. The tests that ask for GPUs are run in host memory (`without_gpus.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import queue
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unittest
from typing import Any

#: Seconds that one test may take, and that PyTorch may take to start where others use the machine too.
LIMIT = 300.0
STARTING = 600.0
REPLY = "CONFORMANCE "


def suite_source() -> str:
    """The suite's text, with our name wherever Gloo's stands."""
    specification = importlib.util.find_spec("torch.testing._internal.distributed.distributed_test")
    assert specification is not None and specification.origin is not None
    text = pathlib.Path(specification.origin).read_text()
    both = '("gloo", "paceline")'
    text = re.sub(r'BACKEND != "gloo"', f"BACKEND not in {both}", text)
    text = re.sub(r'BACKEND == "gloo"', f"BACKEND in {both}", text)
    return text.replace('require_backend_is_available({"gloo"})', 'require_backend_is_available({"gloo", "paceline"})')


def load_suite(path: str) -> Any:
    """Import the copy, with the tables amended."""
    import torch.distributed as dist
    import without_gpus
    from torch.testing._internal import common_distributed
    from torch.testing._internal.common_distributed import DistTestCases

    if os.environ["GPU_TESTS"] == "in host memory":
        without_gpus.install()
    # It wants eight ranks of tests that need three.
    common_distributed.skip_if_small_worldsize = lambda test: test
    for table in (DistTestCases.skip_collective, DistTestCases.backend_feature):
        for backends in table.values():
            if "gloo" in backends:
                backends.add("paceline")
    DistTestCases.backend_feature["plugin"].add("paceline")

    # PyTorch offers this function to Gloo by name; our groups have the method.
    original = dist.monitored_barrier

    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        chosen = dist.group.WORLD if group is None else group
        if chosen is None or chosen == dist.GroupMember.NON_GROUP_MEMBER or chosen.name() != "paceline":
            return original(group, timeout, wait_all_ranks)
        return chosen.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    dist.monitored_barrier = monitored_barrier
    specification = importlib.util.spec_from_file_location("distributed_test_copy", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["distributed_test_copy"] = module
    specification.loader.exec_module(module)
    for table in ("PROFILING", "CUDA_PROFILING", "SEND_RECV_PROFILING"):
        getattr(module, f"{table}_SUPPORTED_BACKENDS").append("paceline")
    return module


def run_rank(path: str) -> None:
    """One rank: a test's name and its meeting file in, its outcome out, line by line."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import TEST_SKIPS

    # The suite's modules are made at import, and must be the same on all ranks.
    torch.manual_seed(0)
    module = load_suite(path)
    suite = type("Suite", (module.TestDistBackend, module.DistributedTest._DistTestBase), {})
    skips = {skip.exit_code for skip in TEST_SKIPS.values()}
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Asked of the class, not of its text: some tests are made by their parameters.
    tests = [name for name in dir(suite) if name.startswith("test_")]
    print(REPLY + json.dumps({"tests": tests}), flush=True)
    for line in sys.stdin:
        name, folder = line.split()
        outcome, text = "passed", ""
        # The suite's ranks meet in files, by number.
        os.environ["TEMP_DIR"], module.Barrier.barrier_id = folder, 0
        meeting = os.path.join(folder, "meeting")
        try:
            case = suite(name)
            case.rank, case.file_name = rank, meeting
            torch.manual_seed(1234)
            seconds = module.CUSTOM_PG_TIMEOUT.get(name, module.default_pg_timeout)
            dist.init_process_group(
                os.environ["BACKEND"],
                init_method=f"file://{meeting}",
                world_size=size,
                rank=rank,
                timeout=timedelta(seconds=seconds),
            )
            case._barrier(timeout=60)
            getattr(case, name)()
            case._barrier(timeout=60)
        except unittest.SkipTest as skip:
            outcome, text = "skipped", str(skip)
            case._barrier(timeout=60)
        except SystemExit as exit:
            outcome, text = ("skipped", "") if exit.code in skips else ("failed", f"exit {exit.code}")
            if outcome == "skipped":
                case._barrier(timeout=60)
        except BaseException:
            outcome, text = "failed", traceback.format_exc()
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
        print(REPLY + json.dumps({"outcome": outcome, "text": text}), flush=True)


class Ranks:
    """The processes of one backend."""

    def __init__(self, backend: str, size: int, suite: str, gpu_tests: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="paceline-conformance-")
        self.replies: queue.SimpleQueue[tuple[int, dict[str, Any] | None]] = queue.SimpleQueue()
        self.processes = []
        self.count = 0
        #: Whether the next test can be run on them: all ranks came to the same end.
        self.usable = True
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for rank in range(size):
            variables = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "BACKEND": backend,
                "GPU_TESTS": gpu_tests,
                "TEMP_DIR": self.folder.name,
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "PYTHONWARNINGS": "ignore",
                "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
            }
            process = subprocess.Popen(
                [sys.executable, __file__, "--rank", suite],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self.processes.append(process)
            threading.Thread(target=self._listen, args=(rank, process), daemon=True).start()
        ready = self.gather(STARTING)
        if len(ready) < size:
            self.close()
            sys.exit(f"{backend}: only {sorted(ready)} of {size} ranks started within {STARTING:g} s")
        #: What the suite has.
        self.tests: list[str] = ready[0]["tests"]

    def _listen(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(REPLY):
                self.replies.put((rank, json.loads(line.removeprefix(REPLY))))
        self.replies.put((rank, None))

    def gather(self, limit: float) -> dict[int, dict[str, Any]]:
        """One reply of each rank; those that did not come are missing."""
        found: dict[int, dict[str, Any]] = {}
        ended: set[int] = set()
        deadline = time.monotonic() + limit
        while len(found.keys() | ended) < len(self.processes):
            try:
                rank, reply = self.replies.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                break
            if reply is None:
                ended.add(rank)
            else:
                found[rank] = reply
        return found

    def run(self, test: str) -> tuple[str, str]:
        self.count += 1
        folder = os.path.join(self.folder.name, str(self.count))
        for inside in ("barrier", "test_dir"):
            os.makedirs(os.path.join(folder, inside))
        for process in self.processes:
            assert process.stdin is not None
            try:
                process.stdin.write(f"{test} {folder}\n")
                process.stdin.flush()
            except OSError:
                self.usable = False
                return "failed", "a rank is gone"
        replies = self.gather(LIMIT)
        missing = [rank for rank in range(len(self.processes)) if rank not in replies]
        texts = [f"rank {rank}: {reply['text']}" for rank, reply in sorted(replies.items()) if reply["text"]]
        outcomes = {reply["outcome"] for reply in replies.values()}
        self.usable = not missing and len(outcomes) == 1
        if missing or "failed" in outcomes:
            return "failed", "\n".join([f"no answer from ranks {missing}" if missing else "", *texts])
        return ("skipped" if outcomes == {"skipped"} else "passed"), "\n".join(texts[:1])

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.folder.cleanup()


def last_line(text: str) -> str:
    """What tracebacks come to: what failed, rather than who waited for the failed."""
    lines = [line for line in text.splitlines() if re.match(r"(rank \d+: )?[\w.]+(Error|Exception)\b", line)]
    first = next((line for line in lines if "barrier timeout" not in line), None)
    others = [line for line in text.splitlines() if line.strip()]
    return (first or (others[-1] if others else ""))[:160]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="gloo,paceline")
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--gpu-tests", choices=["in host memory", "skipped"], default="in host memory")
    parser.add_argument("--only", default="", help="a regular expression that tests' names must contain")
    parser.add_argument("--json", help="write all outcomes there, as they come")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        return run_rank(arguments.rank)

    os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
    backends = arguments.backends.split(",")
    outcomes: dict[str, dict[str, tuple[str, str]]] = {backend: {} for backend in backends}
    with tempfile.TemporaryDirectory(prefix="paceline-suite-") as folder:
        path = os.path.join(folder, "distributed_test_copy.py")
        pathlib.Path(path).write_text(suite_source())
        for backend in backends:
            ranks: Ranks | None = Ranks(backend, arguments.world_size, path, arguments.gpu_tests)
            tests = [name for name in ranks.tests if re.search(arguments.only, name)]
            started = time.monotonic()
            for number, test in enumerate(tests, 1):
                # What fails is tried again in fresh processes: some tests leave theirs unfit for the next.
                for fresh in (False, True):
                    if ranks is not None and (fresh or not ranks.usable):
                        ranks.close()
                        ranks = None
                    ranks = ranks or Ranks(backend, arguments.world_size, path, arguments.gpu_tests)
                    was_fresh = ranks.count == 0
                    outcome = ranks.run(test)
                    if outcome[0] != "failed" or was_fresh:
                        break
                outcomes[backend][test] = outcome
                if outcome[0] == "failed":
                    print(f"\r{backend} {test} failed: {last_line(outcome[1])}{'':20}", file=sys.stderr, flush=True)
                if arguments.json:
                    pathlib.Path(arguments.json).write_text(json.dumps(outcomes, indent=1))
                if sys.stderr.isatty():
                    print(f"\r{backend} {number}/{len(tests)} {test[:60]:60}", end="", file=sys.stderr, flush=True)
            if ranks is not None:
                ranks.close()
            print(f"\r{backend}: {time.monotonic() - started:.0f} s{'':70}", file=sys.stderr)

    print(f"{'backend':10} {'passed':>7} {'skipped':>8} {'failed':>7}   ({arguments.world_size} ranks)")
    for backend in backends:
        kinds = [kind for kind, _ in outcomes[backend].values()]
        print(f"{backend:10} {kinds.count('passed'):7} {kinds.count('skipped'):8} {kinds.count('failed'):7}")
    reference = backends[0]
    for backend in backends[1:]:
        lost = [
            test
            for test, (kind, _) in outcomes[backend].items()
            if kind != "passed" and outcomes[reference][test][0] == "passed"
        ]
        print(f"\npassed on {reference} and not on {backend}: {len(lost)}")
        for test in lost:
            kind, text = outcomes[backend][test]
            print(f"  {test} ({kind}): {last_line(text)}")


if __name__ == "__main__":
    main()
