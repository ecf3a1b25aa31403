"""What a failed rank prints of its error."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.errors import is_own_file
from collectives.job.traceback import traceback_text


def refused() -> None:
    with cc.Mesh(dp=1):
        x = cc.shard(ag.tensor(numpy.ones((6, 2)), layout={"dp": cc.R}), "dp")
        np.tanh(x @ ag.Parameter([0.5, -1.0]))


def text_of(function: Any) -> str:
    try:
        function()
    except Exception:
        return traceback_text(*sys.exc_info())  # type: ignore[arg-type]
    raise AssertionError("no error")


def test_the_frames_of_ringtape_are_left_out() -> None:
    text = text_of(refused)
    files = [line for line in text.splitlines() if line.startswith("  File ")]
    assert len(files) == 2
    assert all("test_traceback.py" in line for line in files)
    assert "LayoutError: matmul(" in text
    assert "fix: cast(" in text


def test_the_frames_of_a_cause_are_left_out_too() -> None:
    def wrapped() -> None:
        try:
            refused()
        except cc.LayoutError as error:
            raise ag.ShapeError("another error") from error

    text = text_of(wrapped)
    assert "direct cause" in text
    assert "inference.py" not in text


def unfit() -> None:
    ag.tensor(numpy.ones(2)) @ ag.tensor(numpy.ones(3))


def in_a_tape() -> None:
    with ag.Tape():
        unfit()


def backward() -> None:
    with ag.Tape() as tape:
        y = ag.Parameter([1.0, 2.0]) * 2
    tape.backward(y)


X = numpy.ones(3)
OUTSIDE_OF_A_MESH: dict[str, Any] = {
    "all_reduce": lambda: cc.all_reduce(X, "dp"),
    "all_reduce, wrong arguments": lambda: cc.all_reduce(X, "dp", by=3),  # type: ignore[call-arg]
    "all_reduce_async": lambda: cc.all_reduce_async(X, "dp"),
    "apply": lambda: cc.apply(cc.Collective("traceback", takes=(cc.V,), registered=False), X, "dp"),
    "backward": backward,
    "barrier": lambda: cc.barrier("dp"),
    "call": lambda: cc.call("dp"),
    "from_local": lambda: cc.from_local(X, {"dp": cc.V}),
    "get": lambda: cc.get(X, "dp", 0),
    "grad": lambda: ag.grad(lambda x: x)(X),
    "halo_exchange": lambda: cc.halo_exchange(X, "dp", 1),
    "hvp": lambda: ag.hvp(np.sum, (X,), ()),
    "irecv": lambda: cc.irecv("dp", 1),
    "isend": lambda: cc.isend(X, "dp", 1),
    "jvp": lambda: ag.jvp(np.sin, (X,), ()),
    "module": lambda: ag.nn.Linear(2, 3)(ag.tensor(X)),
    "random": lambda: ag.random.normal(ag.random.Key(0), -1),
    "recv": lambda: cc.recv("dp", 1),
    "reproducible_sum": lambda: cc.reproducible_sum(X, [0, 1, 2], "dp"),
    "send": lambda: cc.send(X, "dp", 1),
    "tape": in_a_tape,
    "vjp": lambda: ag.vjp(np.sin, "x"),
    "a function that fails": lambda: ag.grad(lambda x: unfit())(X),
}


@pytest.mark.parametrize("name", OUTSIDE_OF_A_MESH)
def test_outside_of_a_mesh_the_frames_are_left_out_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an exception hook, as in one process and in a notebook."""

    def files() -> list[str]:
        with pytest.raises(ag.RingtapeError) as error:
            OUTSIDE_OF_A_MESH[name]()
        return [str(frame.filename) for frame in traceback.extract_tb(error.value.__traceback__)]

    assert [file for file in files() if is_own_file(file)] == []
    assert {Path(file).name for file in files()} == {"test_traceback.py"}
    monkeypatch.setenv("RINGTAPE_TRACEBACK", "full")
    assert any(is_own_file(file) for file in files())


def test_all_frames_are_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGTAPE_TRACEBACK", "full")
    assert "inference.py" in text_of(refused)


def test_an_error_of_another_kind_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise KeyError("internal")

    monkeypatch.setattr("autograd.layouts.inference.explain", broken)
    text = text_of(refused)
    assert "KeyError" in text
    assert "inference.py" in text
