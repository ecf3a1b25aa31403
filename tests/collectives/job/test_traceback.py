"""What a failed rank prints of its error."""

from __future__ import annotations

import queue
import sys
import threading
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.errors import site_of_thread, site_of_traceback
from collectives.job.traceback import traceback_text


def refused() -> None:
    with cc.Mesh(dp=1):
        x = cc.shard(ag.tensor(numpy.ones((6, 2)), layout={"dp": cc.R}), "dp")
        np.tanh(x @ ag.Parameter([0.5, -1.0]))


def text_of(function: Any) -> str:
    try:
        function()
    except Exception:
        return traceback_text(*sys.exc_info())
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


def test_all_frames_are_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGTAPE_TRACEBACK", "full")
    assert "inference.py" in text_of(refused)


def test_an_error_of_another_kind_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise KeyError("internal")

    monkeypatch.setattr("autograd.layouts.refusals.explain", broken)
    text = text_of(refused)
    assert "KeyError" in text
    assert "inference.py" in text


def test_the_place_of_an_error_inside_a_library_is_the_line_of_the_program() -> None:
    code = compile("def call(function, *args):\n    return function(*args)", numpy.__file__, "exec")
    library: dict[str, Any] = {}
    exec(code, library)  # a function in a file of NumPy, as `numpy.ones` is
    try:
        library["call"](library["call"], int, "x")
    except ValueError as error:
        line = error.__traceback__.tb_lineno if error.__traceback__ is not None else 0
        assert site_of_traceback(error.__traceback__) == f"test_traceback.py:{line}"
        inner = error.__traceback__ and error.__traceback__.tb_next
        assert site_of_traceback(inner) == "__init__.py:2"  # it has passed the library alone


def test_the_place_of_a_thread_inside_a_library_is_the_line_of_the_program() -> None:
    waiting: queue.Queue[int] = queue.Queue()
    line = sys._getframe().f_lineno + 3

    def wait() -> None:
        waiting.get()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while not waiting.not_empty._waiters:  # type: ignore[attr-defined]  # it has come to wait
        pass
    assert site_of_thread(thread.ident) == f"test_traceback.py:{line}"
    waiting.put(1)
    thread.join()
