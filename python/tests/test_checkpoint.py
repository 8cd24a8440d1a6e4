"""Checkpoints: a job that is killed goes on at another size, and what cannot be written stops nothing."""

from __future__ import annotations

import collections
import json
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import LIMIT, PROGRAMS, environment, run_launcher

torch = pytest.importorskip("torch")

import paceline.torch as pl  # noqa: E402
from paceline import PacelineError  # noqa: E402
from paceline.torch import checkpoints  # noqa: E402

sys.path.insert(0, str(PROGRAMS))
PROGRAM = PROGRAMS / "checkpointed.py"


@pytest.fixture
def alone():
    pl.init()
    yield
    pl.shutdown()


def command(paceline: str, size: int, folder: pathlib.Path) -> list[str]:
    saving = ["--checkpoint", str(folder / "saved"), "--every", "5"]
    return [paceline, "run", "-q", "-n", str(size), *saving, "--", sys.executable, str(PROGRAM), str(folder)]


def notes(folder: pathlib.Path, size: int) -> list[list[list[object]]]:
    """What each worker of the job of so many noted; the last line may be cut short."""
    workers = []
    for rank in range(size):
        lines = (folder / f"worker-{rank}-of-{size}.jsonl").read_text().splitlines(keepends=True)
        workers.append([json.loads(line) for line in lines if line.endswith("\n")])
    return workers


def test_a_job_killed_in_the_middle_goes_on_at_another_size(paceline_command: str, tmp_path: pathlib.Path) -> None:
    from_first = tmp_path / "worker-0-of-2.jsonl"
    job = subprocess.Popen(command(paceline_command, 2, tmp_path), env=environment(), stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + LIMIT
        # In the second epoch, whose middle is nobody's checkpoint.
        while not from_first.exists() or from_first.read_text().count("\n") < 38:
            assert job.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        # All of it: workers die with the process that started them.
        job.send_signal(signal.SIGKILL)
        job.wait()
    run = run_launcher(*command(paceline_command, 3, tmp_path))
    assert run.returncode == 0, run.stderr
    first, second = notes(tmp_path, 2), notes(tmp_path, 3)
    begun = second[0][0][4]
    restored = begun["steps"]
    assert begun["restored"] and restored >= 30 and restored % 5 == 0
    assert all(worker[0][4] == begun for worker in second)
    # What counts is what was trained before the checkpoint, and all that came after it.
    used: dict[object, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for worker in first:
        for step, epoch, samples, _, _ in worker:
            if step <= restored:
                used[epoch].update(samples)
    for worker in second:
        for _, epoch, samples, _, _ in worker:
            used[epoch].update(samples)
    from checkpointed import EPOCHS, SAMPLES

    assert used == {epoch: collections.Counter(range(SAMPLES)) for epoch in range(EPOCHS)}
    # The loss goes on from where it was, with the learning rate that it had.
    losses = {entry[0]: entry[3] for entry in first[0]}
    assert begun["loss"] == pytest.approx(losses[restored], rel=1e-6)
    assert begun["loss"] != pytest.approx(losses[restored - 5], rel=1e-6)
    assert begun["rate"] == pytest.approx(0.01 * 0.9 ** (restored // 10))


def saved(folder: pathlib.Path, value: float = 1.0, **options: int) -> tuple[pl.Checkpoint, torch.nn.Module]:
    model = torch.nn.Linear(200, 200)
    with torch.no_grad():
        model.weight.fill_(value)
    return pl.checkpoint(model=model, directory=folder, every=1, **options), model


def test_a_damaged_file_is_passed_over_for_the_one_before(
    alone: None, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, model = saved(tmp_path)
    for value in (1.0, 2.0, 3.0):
        with torch.no_grad():
            model.weight.fill_(value)
        first.step()
        first.wait()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["step-000000000002.paceline", "step-000000000003.paceline"]
    content = bytearray(files[1].read_bytes())
    content[len(content) // 2] ^= 1
    files[1].write_bytes(content)
    # Half a file of a job that was killed while it wrote.
    (tmp_path / "step-000000000004.partial").write_bytes(b"half")
    again, other = saved(tmp_path, 9.0)
    assert again.steps == 2 and other.weight[0, 0].item() == 2.0
    assert "damaged" in capfd.readouterr().err
    assert not list(tmp_path.glob("*.partial"))
    for cut in (0, 10, len(content) - 1):
        files[1].write_bytes(content[:cut])
        with pytest.raises(PacelineError):
            checkpoints.read(files[1])


def test_what_could_not_be_read_does_not_push_out_what_is_written_anew(alone: None, tmp_path: pathlib.Path) -> None:
    for steps in (90, 80):
        (tmp_path / f"step-{steps:012d}.paceline").write_bytes(b"damaged")
    anew, _ = saved(tmp_path)
    for _ in range(4):
        anew.step()
        anew.wait()
    assert [file.name[13:17] for file in sorted(tmp_path.iterdir())] == ["0003", "0004", "0080", "0090"]
    assert saved(tmp_path)[0].steps == 4


def test_a_full_disk_is_told_and_training_goes_on(
    alone: None, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, _ = saved(tmp_path)
    whole.step()
    whole.wait()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        whole.step()
        whole.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capfd.readouterr().err
    assert "File too large" in said and "training goes on" in said
    assert [file.name for file in tmp_path.iterdir()] == ["step-000000000001.paceline"]
    whole.step()
    whole.wait()
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_saved_is_what_was_there_and_not_what_came_after(alone: None, tmp_path: pathlib.Path) -> None:
    first, model = saved(tmp_path, 5.0)
    first.step()
    with torch.no_grad():
        model.weight.fill_(6.0)
    first.wait()
    assert saved(tmp_path)[1].weight[0, 0].item() == 5.0


def test_without_a_folder_nothing_is_saved_and_other_programs_files_are_refused(
    alone: None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PACELINE_CHECKPOINT", raising=False)
    nowhere = pl.checkpoint(model=torch.nn.Linear(1, 1))
    nowhere.step()
    nowhere.save()
    assert (nowhere.steps, nowhere.restored) == (1, False)
    first, _ = saved(tmp_path)
    first.step()
    first.wait()
    with pytest.raises(PacelineError, match="has no `optimizer`"):
        pl.checkpoint(model=torch.nn.Linear(200, 200), optimizer=torch.nn.Linear(1, 1), directory=tmp_path)
    with pytest.raises(PacelineError, match="(?s)`model` cannot go on from the checkpoint in .*size mismatch"):
        pl.checkpoint(model=torch.nn.Linear(3, 3), directory=tmp_path)
    with pytest.raises(PacelineError, match="say what to save"):
        pl.checkpoint(directory=tmp_path)



class Keeps:
    """A part of a program that keeps something."""

    def __init__(self, kept: object) -> None:
        self.kept = kept

    def state_dict(self) -> dict[str, object]:
        return {"kept": self.kept}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.kept = state["kept"]


def test_state_that_could_not_be_read_again_is_refused_by_name(alone: None, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = pathlib.PurePosixPath("a")
    with pytest.raises(PacelineError, match="the state of `best` holds what is neither a tensor nor a plain value"):
        pl.checkpoint(best=Keeps(path), directory=tmp_path, every=1)
    # What was plain at first and is not later.
    keeps = Keeps(1.0)
    saved = pl.checkpoint(best=keeps, directory=tmp_path, every=1)
    saved.step()
    saved.wait()
    keeps.kept = path
    saved.step()
    saved.wait()
    assert "the checkpoint of step 2 was not written" in capfd.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["step-000000000001.paceline"]


def test_a_checkpoint_that_was_due_while_another_was_written_is_written_in_the_end(
    alone: None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, may_go_on = checkpoints.write, threading.Event()

    def slowly(*arguments: object) -> None:
        may_go_on.wait(LIMIT)
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoints, "write", slowly)
    saved = pl.checkpoint(best=Keeps(1.0), directory=tmp_path, every=1)
    saved.step()
    saved.step()
    may_go_on.set()
    saved.wait()
    assert sorted(file.name[:17] for file in tmp_path.iterdir()) == ["step-000000000001", "step-000000000002"]
