"""The guides of ``docs/guides`` and the README's ten lines, done as they say: files are written, commands run, and what they print is what the guide shows.

In a guide, a block ```` ```python train.py ```` is a file; one of ``sh`` is run, and ``sh on NAME`` on a machine of that name, beside those of
others; ``text`` after it is what is printed, with ``…`` for what differs from time to time. ``<!-- with first-job.md -->`` takes
the files of another guide.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from conftest import LIMIT, environment

ROOT = pathlib.Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
#: As guides call the first machine; here every machine is this one.
FIRST_MACHINE = "10.0.0.1"


@dataclasses.dataclass
class Block:
    """Of three backquotes: what follows them, and what is inside."""

    info: list[str]
    text: str


def blocks(guide: pathlib.Path) -> list[Block]:
    """In order."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(info.split(), text) for info, text in found]


def write_files(guide: pathlib.Path, folder: pathlib.Path) -> None:
    """Those of guides that it stands on, then its own."""
    for other in re.findall(r"<!-- with (\S+) -->", guide.read_text()):
        write_files(guide.parent / other, folder)
    for block in blocks(guide):
        if len(block.info) == 2 and block.info[0] != "sh":
            (folder / block.info[1]).write_text(block.text)


def is_shown(expected: str, printed: str) -> bool:
    """Whether all lines that a guide shows were printed, in that order, ``…`` being anything."""
    rest = iter(printed.splitlines())
    for line in filter(str.strip, expected.splitlines()):
        pattern = ".*".join(re.escape(part) for part in line.strip().split("…"))
        if not any(re.fullmatch(pattern, other.strip()) for other in rest):
            return False
    return True


class Machine:
    """A shell, and what it is to print."""

    def __init__(self) -> None:
        self.script: list[str] = []
        self.shown: list[str] = []

    def add(self, script: str) -> None:
        self.script.append(script.replace(FIRST_MACHINE, "127.0.0.1"))
        self.shown.append("")


def machines(guide: pathlib.Path) -> dict[str, Machine]:
    """By name."""
    found: dict[str, Machine] = {}
    last: Machine | None = None
    for block in blocks(guide):
        if block.info[:1] == ["sh"]:
            last = found.setdefault(" ".join(block.info[1:]), Machine())
            last.add(block.text)
        elif block.info == ["text"] and last is not None:
            last.shown[-1] += block.text
    return found


@contextlib.contextmanager
def shells(commands: dict[str, str], folder: pathlib.Path, **more: str) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Start them all, and leave nothing of them."""
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), more.pop("first"), os.environ["PATH"]])
    started = {
        name: subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment(PATH=path, **more), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )
        for name, script in commands.items()
    }  # fmt: skip
    try:
        yield started
    finally:
        for process in started.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize("guide", [ROOT / "README.md", *GUIDES], ids=lambda guide: guide.stem)
def test_a_guide_does_what_it_says(guide: pathlib.Path, paceline_command: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    write_files(guide, tmp_path)
    found = machines(guide)
    assert found, "a guide without a command"
    # What a block prints is told from what the next one does.
    mark = "-- end of block --"
    scripts = {name: f"\necho '{mark}'\n".join(machine.script) for name, machine in found.items()}
    command = str(pathlib.Path(paceline_command).parent)
    with shells(scripts, tmp_path, first=command, PACELINE_SECRET="a secret of guides only", XDG_RUNTIME_DIR=str(tmp_path)) as started:
        for name, process in started.items():
            printed, _ = process.communicate(timeout=2 * LIMIT)
            assert process.returncode == 0, f"{name}:\n{printed}"
            parts = printed.split(mark + "\n")
            for expected, part in zip(found[name].shown, parts, strict=True):
                assert is_shown(expected, part), f"{name}: shown\n{expected}\nprinted\n{part}"


def test_what_a_guide_shows_must_be_printed() -> None:
    assert is_shown("step 20: loss …\n", "[0] a\nstep 20: loss 1.9\n")
    assert not is_shown("b\na\n", "a\nb\n")
    assert not is_shown("step 40", "step 4")
