"""The reading path: which files of the library a newcomer opens to follow one operation, its backward and its gradient.

    python tests/autograd/test_reading_path.py        # prints the files, in the order in which they are entered
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc

LIBRARY = Path(ag.__file__).parent.parent
MOST_FILES = 8  # of the engine: dispatch, recording, locks, leaves, tape, objective, sweep; and the operation's own


def entered(run: Callable[[], Any]) -> list[str]:
    """The library's files of which `run` calls a Python function, in the order of their first call."""
    files: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(LIBRARY) and file != Path(__file__):
            name = str(file.relative_to(LIBRARY))
            if name not in files:
                files.append(name)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return files


def product(x: Any, w: Any, ct: Any) -> None:
    """``y = x * w``, its backward, and the gradient."""
    with ag.Tape() as tape:
        y = x * w
    tape.backward(y, ct)
    assert w.grad is not None


def plain() -> list[str]:
    """The files of a second call without a mesh."""
    x, w, ct = ag.tensor(numpy.ones(3)), ag.Parameter(numpy.ones(3)), ag.tensor(numpy.ones(3))
    product(x, w, ct)
    return entered(lambda: product(x, w, ct))


def sharded() -> list[str]:
    """The files of a second call where x is a part of a whole and w is replicated."""
    with cc.Mesh(dp=1):
        x = ag.tensor(numpy.ones((2, 3)), {"dp": cc.Shard(0)})
        w = ag.tensor(numpy.ones(3), {"dp": cc.R}, requires_grad=True)
        ct = ag.tensor(numpy.ones((2, 3)), {"dp": cc.Shard(0)})
        product(x, w, ct)
        return entered(lambda: product(x, w, ct))


@pytest.mark.parametrize("path", [plain, sharded])
def test_one_operation_is_read_in_few_files(path: Callable[[], list[str]]) -> None:
    files = path()
    assert "autograd/engine/dispatch.py" in files and len(files) <= MOST_FILES, files


if __name__ == "__main__":
    for path in (plain, sharded):
        print(f"{path.__name__}: {len(found := path())} files")
        for file in found:
            print("   ", file)
