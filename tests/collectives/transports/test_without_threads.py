"""Where Python cannot start threads, as in WebAssembly, one rank works, and `run` is refused with what to do."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

import collectives as cc

from ..launch import ROOT

PROGRAM = ROOT / "tests" / "collectives" / "programs" / "without_threads.py"
RUN: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120}


def test_one_rank_without_threads() -> None:
    found = subprocess.run([sys.executable, str(PROGRAM)], cwd=ROOT, check=False, **RUN)
    assert (found.returncode, found.stdout.split()[:1]) == (0, ["loss"]), found.stderr


def test_a_limit_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks that have been started end, too, and the next call works."""
    start = threading.Thread.start

    def limited(thread: Any) -> None:
        if thread.name == "rank 2":
            raise RuntimeError("can't start new thread")
        start(thread)

    def program() -> int:
        with cc.Mesh(dp=-1):
            return int(cc.all_reduce(1, "dp", to=cc.I))

    with monkeypatch.context() as m:
        m.setattr(threading.Thread, "start", limited)
        with pytest.raises(cc.MeshError, match="rank 2 of 4 has no thread: can't start new thread\n  fix: program"):
            cc.run(program, 4)
    assert cc.run(program, 4) == [4] * 4
    ranks = [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]
    for thread in ranks:
        thread.join(30)  # their error may be under way
    assert not any(thread.is_alive() for thread in ranks)
