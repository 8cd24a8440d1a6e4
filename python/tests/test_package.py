"""The package itself: its examples run, it needs no PyTorch, and PyTorch finds it."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from conftest import environment

import paceline
from paceline import _native

PURE = ["paceline", "paceline.adaptation", "paceline.metering", "paceline.policies", "paceline.policy", "paceline.world"]
WITH_TORCH = [
    "paceline.torch",
    "paceline.torch.checkpoints",
    "paceline.torch.collectives",
    "paceline.torch.data",
    "paceline.torch.horovod",
    "paceline.torch.horovod_optimizer",
    "paceline.torch.optimizer",
    "paceline.torch.state",
    "paceline.torch.tensors",
    "paceline.torch.tracing",
    "paceline.torch.versions",
]


def test_the_reference_says_what_the_code_says() -> None:
    pytest.importorskip("torch")
    script = Path(__file__).parents[2] / "scripts" / "reference"
    checked = subprocess.run([sys.executable, str(script), "--check"], env=environment(), capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("module", PURE + WITH_TORCH)
def test_docstrings_run(module: str) -> None:
    if module in WITH_TORCH:
        pytest.importorskip("torch")
    failures, attempts = doctest.testmod(importlib.import_module(module))
    paceline.shutdown()
    assert failures == 0 and attempts > 0


def test_pytorch_is_not_needed_to_import_and_to_join() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; import paceline as pl; pl.init(); assert pl.size() == 1;"
        "pl.shutdown()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=environment(), timeout=60)


def test_either_import_order_registers_the_backend_once() -> None:
    pytest.importorskip("torch")
    check = "assert 'PACELINE' in torch.distributed.Backend._plugins"
    for imports in ("import torch", "import paceline.torch, torch"):
        subprocess.run([sys.executable, "-c", f"{imports}; {check}"], check=True, env=environment(), timeout=60)


def test_a_pytorch_that_is_too_old_or_too_new_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    dist = pytest.importorskip("torch.distributed")
    from paceline.torch import versions

    with pytest.raises(paceline.PacelineError, match=r"2\.6\.0.* is too old .* install 2\.7 or newer"):
        versions.check("2.6.0+cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.check("2.7.0")
        versions.check("2.11.0+cu130")
    with pytest.warns(UserWarning, match="9.0 is newer than any"):
        versions.check("9.0")
    monkeypatch.delattr(dist, "Work")
    with pytest.raises(paceline.PacelineError, match="9.0 is too new .* update paceline"):
        versions.check("9.0")


def test_the_stub_names_what_the_native_module_has() -> None:
    stub = Path(_native.__file__).parent.joinpath("_native.pyi").read_text()
    assert Path(_native.__file__).parent.joinpath("py.typed").exists()
    for name in dir(_native):
        if not name.startswith("__"):
            assert re.search(rf"(class |def |^){name}\b", stub, re.MULTILINE), f"the stub lacks {name}"
    for kind in (_native.Worker, _native.Handle, _native.Coordinator, _native.Recording):
        for name in vars(kind):
            if not name.startswith("__"):
                assert re.search(rf"def {name}\b", stub), f"the stub lacks {kind.__name__}.{name}"


def test_a_worker_checks_what_it_is_given() -> None:
    secret = _native.fresh_secret()
    hosting = _native.Coordinator("127.0.0.1", 1, secret)
    worker = _native.Worker.join(hosting.address, 0, 1, secret, hosting)
    with pytest.raises(_native.PacelineError, match="reads 4 and writes 4"):
        worker.post("all_reduce", "short", "f32", [4], (64, 1), (64, 1))
    with pytest.raises(_native.PacelineError, match="unknown element type"):
        worker.post("all_reduce", "type", "f31", [0], (0, 0), (0, 0))
    with pytest.raises(_native.PacelineError, match="unknown collective"):
        worker.post("all_think", "kind", "f32", [0], (0, 0), (0, 0))
    with pytest.raises(_native.PacelineError, match="not aligned"):
        worker.post("all_reduce", "odd", "f32", [1], (65, 1), (65, 1))
    with pytest.raises(_native.PacelineError, match="not in the operation's group"):
        worker.post("all_reduce", "group", "f32", [0], (0, 0), (0, 0), ranks=[3])
    assert worker.settings["strategy"] == "auto" and len(worker.hosts) == 1
    worker.close()
    assert not worker.open
    with pytest.raises(_native.PacelineError, match="has left the job"):
        worker.post("all_reduce", "late", "f32", [0], (0, 0), (0, 0))


def test_a_bad_secret_and_a_bad_address_are_refused_by_name() -> None:
    with pytest.raises(_native.JoinError, match="the secret given"):
        _native.Coordinator("127.0.0.1", 1, "short")
    with pytest.raises(_native.JoinError, match="nowhere"):
        _native.Coordinator("nowhere", 1, _native.fresh_secret())
    assert issubclass(_native.JoinError, _native.PacelineError)
    assert inspect.getdoc(_native.Worker)
