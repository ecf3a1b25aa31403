"""The gallery of wrong programs: each loss falls, each gradient is wrong, ringtape refuses it, and it is corrected."""

from __future__ import annotations

import signal
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

import collectives as cc

WRONG = Path(__file__).resolve().parents[2] / "examples" / "wrong"
sys.path.insert(0, str(WRONG))
import gallery  # noqa: E402 - the folder is not a package

PROGRAMS = {program.__name__: program for program in gallery.programs()}
STEPS = 25


def test_there_are_twelve() -> None:
    assert len(PROGRAMS) == 12
    readme = (WRONG / "README.md").read_text()
    assert all(f"`{name}.py`" in readme for name in PROGRAMS)


@pytest.mark.parametrize(("name", "ranks"), [(name, 4 if name.startswith("07") else 3) for name in PROGRAMS])
def test_program(name: str, ranks: int) -> None:
    program = PROGRAMS[name]

    def run() -> Any:
        mesh = gallery.mesh_of(program)
        raw, corrected = (gallery.train(program, mesh, how, STEPS) for how in (False, True))
        return raw, corrected, gallery.refusal(program, mesh)

    for (raw, (raw_error,)), (corrected, (mended_error,)), said in cc.run(run, ranks=ranks):
        assert raw[-1] < 0.99 * raw[0], "the loss of the wrong program should fall"
        assert raw_error > 0.1 and mended_error < 1e-12
        assert corrected[-1] < corrected[0]
        assert ("axis '" in said or "{tp: P}" in said) and "fix: " in said
        assert name == "09_own_seeds" or f"{name}.py:" in said or name.startswith("03")


def test_on_one_process_the_labels_refuse_it_too() -> None:
    for name, program in PROGRAMS.items():
        if name not in ("09_own_seeds", "11_sum_of_means", "12_averaged_twice"):  # one rank has one copy, and factor 1
            assert "Error: " in gallery.refusal(program, gallery.mesh_of(program))


def show(name: str) -> None:
    """Run a program as from the command line."""
    pipes = signal.getsignal(signal.SIGPIPE)
    try:
        gallery.show(PROGRAMS[name])
    finally:  # otherwise a closed pipe of a later test would end this process
        signal.signal(signal.SIGPIPE, pipes)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    picture = tmp_path / "curves.png"
    monkeypatch.setattr(sys, "argv", ["01", "--ranks", "2", "--steps", "5", "--plot", str(picture)])
    show("01_forgotten_sum")
    said = capsys.readouterr().out
    assert "fix: cast(w, 'dp', to=R)" in said and "relative error of the gradient" in said
    lines = [line.split() for line in said.splitlines() if line.strip()[:1].isdigit()]
    assert [line[0] for line in lines] == ["0", "1", "2", "4"]
    for _, raw, corrected, raw_error, error in lines:  # the error stays, whatever the losses do
        assert float(raw) >= float(corrected) and float(raw_error) > 0.1 and float(error) < 1e-12
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG") and struct.unpack(">II", data[16:24]) == (1296, 518)


def test_a_loss_that_ends_lower_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["03", "--ranks", "2", "--steps", "3"])
    show("03_counted_p_times")
    assert "The wrong program's loss ends lower: the loss does not show the fault." in capsys.readouterr().out
