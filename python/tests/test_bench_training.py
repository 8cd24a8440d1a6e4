"""The training benchmark without its workers: its arithmetic by hand-worked numbers, its input, its failures."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "bench" / "training"
sys.path.insert(0, str(FOLDER))

import bounds  # noqa: E402
import cell  # noqa: E402
import curves  # noqa: E402
import headroom  # noqa: E402
import profiles  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402

#: 1 MB, 2 MB and 3 MB of gradients; 60 ms of computation.
THREE = profiles.Profile(
    "three",
    "",
    (
        profiles.Layer("first", (125_000, 125_000), 0.002, 0.004),
        profiles.Layer("second", (500_000,), 0.008, 0.016),
        profiles.Layer("third", (750_000,), 0.010, 0.020),
    ),
)


def test_a_ring_sends_twice_what_the_other_workers_hold() -> None:
    # 4 workers: 3/2 of 1 MB are 12 Mbit, 12 ms at 1 Gbit/s. 2 workers: 1 MB, 8 ms. 1 worker: nothing.
    assert bounds.wire_seconds(1_000_000, 4, 1e9) == pytest.approx(0.012)
    assert bounds.wire_seconds(1_000_000, 2, 1e9) == pytest.approx(0.008)
    assert bounds.wire_seconds(1_000_000, 1, 1e9) == 0


def test_where_computation_is_longer_the_first_layer_waits_for_its_own_tensors() -> None:
    # 4 workers at 2 Gbit/s: 6 ms a megabyte, so 36 ms in all and 6 ms for the first layer.
    found = bounds.bound(THREE, 4, 2e9)
    assert found.computation == pytest.approx(0.060)
    assert found.wire == pytest.approx(0.036)
    assert found.step == pytest.approx(0.060 + 0.006)
    assert found.plain == pytest.approx(0.060)
    assert found.distance(0.0726) == pytest.approx(0.10)


def test_where_the_wire_is_longer_it_rests_while_the_last_layer_computes() -> None:
    # 4 workers at 500 Mbit/s: 24 ms a megabyte, 144 ms in all; the last layer computes 30 ms.
    found = bounds.bound(THREE, 4, 5e8)
    assert found.step == pytest.approx(0.144 + 0.030)
    assert found.plain == pytest.approx(0.144)
    assert found.ratio == pytest.approx(60 / 144)


def test_a_layer_between_may_bind() -> None:
    # 4 workers at 1 Gbit/s: 12 ms a megabyte. At the first layer 60 + 12 ms, at the last 72 + 30 ms, and at the second
    # 36 ms for the first two layers' tensors and 54 ms in which the last two compute.
    assert bounds.bound(THREE, 4, 1e9).at_any_layer == pytest.approx(0.102)
    # With a small last layer: 60 + 12, 39.6 + 24, 36 + 54 (the first 3 MB, and all but 6 ms of the computation).
    small = (*THREE.layers[:2], profiles.Layer("third", (75_000,), 0.010, 0.020))
    found = bounds.bound(profiles.Profile("small", "", small), 4, 1e9)
    assert found.step == pytest.approx(0.072)
    assert found.at_any_layer == pytest.approx(0.036 + 0.054)


def test_what_is_hidden_is_what_the_step_does_not_show() -> None:
    found = bounds.bound(THREE, 4, 2e9)
    assert found.hidden(0.096) == pytest.approx(0)  # one after the other
    assert found.hidden(0.060) == pytest.approx(1)  # nothing but computation
    assert found.hidden(0.078) == pytest.approx(0.5)
    assert found.hidden(0.078, computation=0.069) == pytest.approx(0.75)  # computation as it was measured


def test_layers_without_parameters_of_their_own_move_the_ends() -> None:
    # The last layer shares the first one's parameters; one without any comes before the first.
    layers = (profiles.Layer("none", (), 0.001, 0.002), *THREE.layers, profiles.Layer("tied", (), 0.003, 0.006))
    found = bounds.bound(profiles.Profile("tied", "", layers), 4, 2e9)
    assert found.first == pytest.approx(0.006 - 0.003)
    assert found.last == pytest.approx(0.030 + 0.009)


def test_rates_are_read_as_people_write_them() -> None:
    assert bounds.bits_per_second("500mbit") == 5e8
    assert bounds.bits_per_second("2.5gbit") == 2.5e9
    for wrong in ("500", "mbit", "-1gbit", "infgbit", "1tbit"):
        with pytest.raises(ValueError, match="500mbit"):
            bounds.bits_per_second(wrong)


def test_gradients_in_backward_order_become_layers_in_forward_order() -> None:
    gradients = [
        {"name": "out.bias", "elements": 10, "backward_gap_us": 0},
        {"name": "out.weight", "elements": 200, "backward_gap_us": 70},
        {"name": "body.0.weight", "elements": 400, "backward_gap_us": 130},
        {"name": "scale", "elements": 1, "backward_gap_us": 5},
    ]
    (found,) = profiles.parse({"net": {"tensors": gradients}}, "file", "file", "net", 0.3)
    assert [(layer.name, layer.tensors) for layer in found.layers] == [
        ("scale", (1,)),
        ("body.0", (400,)),
        ("out", (200, 10)),
    ]
    assert [layer.backward for layer in found.layers] == pytest.approx([5e-6, 130e-6, 70e-6])
    assert [layer.forward for layer in found.layers] == pytest.approx([1.5e-6, 39e-6, 21e-6])
    assert "0.3" in found.about


def test_a_profile_survives_being_written_and_read() -> None:
    written = json.loads(json.dumps(THREE.slowed(2).written()))
    (again,) = profiles.parse(written, "file", "file", None, 0.5)
    assert again == THREE.slowed(2)
    assert again.seconds == pytest.approx(2 * THREE.seconds) and again.bytes == THREE.bytes


@pytest.mark.parametrize("path", sorted((FOLDER / "profiles").glob("*.json")), ids=lambda path: path.stem)
def test_profiles_that_come_along_are_well_formed(path: pathlib.Path) -> None:
    (found,) = profiles.read(path.stem)
    assert found.name == path.stem and found.about
    assert found.seconds > 0 and found.bytes > 0


@pytest.mark.parametrize(
    "content, word",
    [
        ([], "object"),
        ({"a": 1}, "layers"),
        ({"layers": []}, "parameters"),
        ({"layers": [{"name": "a", "elements": 0, "forward": 1, "backward": 1}]}, "elements"),
        ({"layers": [{"name": "a", "elements": 1, "forward": -1, "backward": 1}]}, "time"),
        ({"layers": [{"name": "a", "elements": 1, "forward": float("nan"), "backward": 1}]}, "time"),
        ({"tensors": [{"name": "a", "elements": 1}]}, "backward_gap_us"),
        ({"x": {"tensors": 3}}, "TypeError"),
    ],
)
def test_what_is_no_profile_is_refused_with_the_reason(content: object, word: str) -> None:
    with pytest.raises(profiles.ProfileError, match=word):
        profiles.parse(content, "file", "file", None, 0.5)


def test_a_missing_file_or_model_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(profiles.ProfileError, match="vgg16"):
        profiles.read(str(tmp_path / "none.json"))
    file = tmp_path / "two.json"
    gradient = {"name": "w", "elements": 1, "backward_gap_us": 1}
    file.write_text(json.dumps({"one": {"tensors": [gradient]}, "two": {"tensors": [gradient]}}))
    assert [profile.name for profile in profiles.read(str(file))] == ["one", "two"]
    assert [profile.name for profile in profiles.read(f"{file}#two")] == ["two"]
    with pytest.raises(profiles.ProfileError, match="one, two"):
        profiles.read(f"{file}#three")


def cells(*words: str) -> list[cell.Cell]:
    return list(run.chosen(run.arguments().parse_args(words)))


def test_cells_are_all_combinations_of_what_was_asked_for() -> None:
    found = cells("--profile", "vgg16,lstm", "--slow", "1,20", "--rates", "500mbit,1gbit", "--workload", "resnet50")
    assert [(one.workload, one.slow, one.rate) for one in found] == [
        ("resnet50", 1, "500mbit"),
        ("resnet50", 1, "1gbit"),
        *((name, slow, rate) for name in ("vgg16", "lstm") for slow in (1, 20) for rate in ("500mbit", "1gbit")),
    ]
    real, played = found[0], found[-1]
    assert real.profile is None and real.batch == 32
    assert played.profile is not None
    assert played.profile.seconds == pytest.approx(20 * profiles.read("lstm")[0].seconds)


def test_a_forward_pass_that_was_measured_is_played_once_whatever_the_share() -> None:
    assert len(cells("--profile", "vgg16", "--forward-share", "0.3,0.5,0.7", "--rates", "1gbit")) == 1


def test_a_search_is_over_all_pairs() -> None:
    words = ("--search", "--partitions", "1MiB,4MiB", "--credits", "2MiB", "--profile", "lstm", "--rates", "1gbit")
    (found,) = cells(*words)
    assert found.search == ("--partition 1MiB --credit 2MiB", "--partition 4MiB --credit 2MiB")


@pytest.mark.parametrize(
    "words",
    [
        ("--rates", "1gbit"),
        ("--rates", "1gbit", "--workload", "vgg17"),
        ("--rates", "fast", "--profile", "lstm"),
        ("--rates", "1gbit", "--profile", "lstm", "--slow", "0"),
        ("--rates", "1gbit", "--profile", "lstm", "--ways", "teleport"),
        ("--rates", "1gbit", "--profile", "lstm", "--hosts", "0"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError):
        cells(*words)


def result(**seconds: list[float]) -> report.Result:
    """Three layers at 500 Mbit/s of payload (144 ms on the wire, 30 ms in the last layer: the bound is 174 ms)."""
    measured = {
        "seconds": {way.replace("_", "-"): values for way, values in seconds.items()},
        "medians": {way.replace("_", "-"): sorted(values)[len(values) // 2] for way, values in seconds.items()},
        "busy": {},
        "settings": {"partition": 1 << 20, "credit": (1 << 64) - 1},
    }
    rate = f"{500 / bounds.PAYLOAD}mbit"
    one = cell.Cell("three", THREE, 1.0, 0, rate, 4, "", (), 1, tuple(measured["seconds"]), 3, 1)
    return report.Result(one, measured, THREE, 0.95, {"perfect": 0.175})


def test_ratios_are_taken_within_rounds() -> None:
    # The second round met a slow spell: both ways took twice as long.
    found = result(ddp_gloo=[0.20, 0.42, 0.21], optimizer=[0.20, 0.40, 0.18])
    assert found.ratio("optimizer", "ddp-gloo") == pytest.approx(1.05)
    assert found.ratio("optimizer", "optimizer-fifo") is None


def test_the_tables_show_the_bound_and_the_notes_where_we_lose() -> None:
    found = result(alone=[0.06], ddp_gloo=[0.18], optimizer_fifo=[0.18], optimizer=[0.20])
    shown = report.tables([found])
    for text in ("174 ms", "144 ms", "175 ms", "+15 %", "0.90x", "1 MiB, unlimited"):
        assert text in shown, text
    notes = "\n".join(report.notes([found]))
    assert "Behind DDP over Gloo: three" in notes and "Scheduling costs more than 2 %: three" in notes
    assert json.loads(json.dumps(found.written()))["bound_seconds"] == pytest.approx(0.174)


def stand_in(folder: pathlib.Path, script: str) -> cell.Testbed:
    """A command that takes the place of `paceline-testbed`; $out is where worker 0 would write."""
    command = folder / "testbed"
    command.write_text(f'#!/bin/sh\nfor out; do :; done\n{script}\n')
    command.chmod(0o755)
    return cell.Testbed(str(command))


def test_a_failing_cell_says_the_workers_last_words(tmp_path: pathlib.Path) -> None:
    (one,) = cells("--profile", "lstm", "--rates", "1gbit")
    with pytest.raises(cell.CellError, match="no such device"):
        stand_in(tmp_path, 'echo "host0: no such device"; exit 7').measure(one, 60, print)
    with pytest.raises(cell.CellError, match="longer than 0"):
        stand_in(tmp_path, "exec sleep 10").measure(one, 0.2, print)


def test_a_cell_brings_back_what_worker_0_wrote(tmp_path: pathlib.Path) -> None:
    (one,) = cells("--profile", "lstm", "--rates", "1gbit")
    told: list[str] = []
    script = """echo "host0: progress: round 1"; echo '{"medians": {}}' > "$out" """
    assert stand_in(tmp_path, script).measure(one, 60, told.append) == {"medians": {}}
    assert told == ["round 1"]


def test_speeds_over_time_show_a_change_at_once_and_no_single_slow_step() -> None:
    # Two steps a second from 1 s on, one of which takes 2 s; from 11 s on one step a second.
    ends = [0.5, *(1 + place / 2 for place in range(10)), *(7.5 + place / 2 for place in range(8)), *range(12, 20)]
    found = dict(curves.speeds(ends, 1.0))
    assert min(found) == 1.25, "what does not count is not drawn"
    assert all(speed == pytest.approx(2 if at < 11 else 1) for at, speed in found.items())


def test_a_drawing_has_every_method_and_what_each_phase_changes() -> None:
    change = {"at": 0.0, "what": "host3", "how": "250mbit"}
    drawn = curves.draw(
        "slow <host>",
        {
            "phases": [{"begin": 0.0, "end": 10.0, "lines": []}, {"begin": 10.0, "end": 20.0, "lines": [change]}],
            "fixed": {"ring 1MiB 1MiB": [2.0, 1.0]},
            "yardstick": {"best": ["ring 1MiB 1MiB"] * 2},
            "methods": {name: {"begin": 0.0, "ends": [place / 2 for place in range(40)]} for name in ("default", "replay")},
        },
    )
    for text in ("slow &lt;host&gt;", "host3 250mbit", "best of each phase", "default", "replay", "steps a second"):
        assert text in drawn, text
    (oracle,) = [line for line in drawn.splitlines() if "dasharray" in line]
    # Both phases are half as wide as the drawing; the fastest is at its top.
    assert 'points="60.0,46.0 500.0,46.0 500.0,205.0 940.0,205.0"' in oracle
    assert drawn.count("<polyline") == 3


def test_an_axis_has_few_and_round_numbers() -> None:
    assert curves.numbers(7.68) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert curves.numbers(85) == [0, 10, 20, 30, 40, 50, 60, 70, 80]
    assert curves.numbers(0.5) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])


#: A command that takes the place of `paceline tune`: every tuner ends at the best setting, from wherever the job begins. It
#: notes that, and who tunes.
TUNES = """
import json, pathlib, sys
words = sys.argv[1:]
methods = [later for word, later in zip(words, words[1:]) if word == "--method"]
begins = pathlib.Path(words[words.index("--in-force") + 1]).read_text().split() if "--in-force" in words else []
with open({told!r}, "a") as told:
    print(json.dumps([begins, methods]), file=told)
share = 0.75 if "64KiB" in str(begins) else 1.0
phase = {{"steps_until_near": 40, "seconds_lost": 2.0}}
print(json.dumps({{
    "yardstick": {{"best": [{{"strategy": "ring", "partition": "1MiB", "credit": "4MiB"}}]}},
    "runs": [
        {{"method": one, "decisions": [], "phases": [{{**phase, "found": one != "default", "end_share": share if one == "default" else 1.0}}]}}
        for one in methods
    ],
}}))
"""


def test_headroom_is_told_from_each_beginning_and_methods_are_added_to_what_is_known(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, command = tmp_path / "told", tmp_path / "paceline"
    command.write_text(f"#!{sys.executable}\n{TUNES.format(told=str(told))}")
    command.chmod(0o755)

    def tables(*more: str) -> str:
        words = ["static", "--out", str(tmp_path / "out"), "--models", "lstm", "--paceline", str(command), "--beginnings", "usual,small"]
        monkeypatch.setattr(sys, "argv", ["headroom.py", *words, *more])
        assert headroom.main() == 0
        return capsys.readouterr().out

    first = tables()
    assert "| mean (worst) | | usual | +0.0 % (+0.0 %) |" in first
    assert "| mean (worst) | | small | -25.0 % (-25.0 %) | +0.0 % (+0.0 %) |" in first
    asked = [json.loads(line) for line in told.read_text().splitlines()]
    assert [begins for begins, _ in asked[2:]] == [
        ["[settings]", "strategy", "=", '"ring"'],
        ["[settings]", "strategy", "=", '"ring"', "partition", "=", '"64KiB"', "credit", "=", '"64KiB"'],
    ]
    assert tables() == first and len(told.read_text().splitlines()) == 4, "nothing is played twice"
    then = tables("--methods", "all")
    assert [json.loads(line)[1] for line in told.read_text().splitlines()[4:]] == [["grid", "random"]] * 4
    assert "| model, script, seed | grid | random | bo | autobyte | replay |" in then
    assert "| lstm 25gbit, still, all-reduce, small, 1 | 40 steps, 2.0 s |" in then
