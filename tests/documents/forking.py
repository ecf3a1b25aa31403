"""Run programs as `python -W error` does, each in a fork of one Python that has imported NumPy and the library.

A start of Python takes a fifth of a second, nearly all of it imports, and most programs of the documents are shorter.
The parent of the forks, `forked.py`, is a process of its own: it has one thread, no ranks, and nothing of pytest.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FORKED = Path(__file__).with_name("forked.py")


def run_program(
    code: str, name: str, *arguments: str, limit_s: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the text of a program to its end.

    Parameters
    ----------
    code : str
    name : str
        The file that errors name. The program imports from its folder.
    *arguments : str
        What follows the name in `sys.argv`.
    limit_s : float
        After so many seconds the program is killed.
    **environment : str
        Variables beside those of this process. The library and Python have read theirs if they do so at their import.

    Raises
    ------
    subprocess.TimeoutExpired
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        out.touch(), err.touch()
        given = {"code": code, "arguments": [name, *arguments], "environment": {**os.environ, **environment},
                 "output": [str(out), str(err)]}  # fmt: skip
        code_of_exit = _parent().fork(given, limit_s)
        return subprocess.CompletedProcess([name, *arguments], code_of_exit, out.read_text(), err.read_text())


def run_file(path: Path, *arguments: str, limit_s: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a file to its end; see `run_program`."""
    return run_program(path.read_text(), str(path), *arguments, limit_s=limit_s, **environment)


class _Parent:
    """The process that forks. It ends when its input is closed."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", FORKED], env={**os.environ, "PYTHONPATH": path}, cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        atexit.register(self.process.communicate)  # close its input and wait for its end

    def fork(self, given: dict[str, Any], limit_s: float) -> int:
        """Run a program in a fork; its exit status."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(given), file=self.process.stdin, flush=True)
        if not select.select([self.process.stdout], [], [], limit_s)[0]:
            self.end()
            raise subprocess.TimeoutExpired(given["arguments"], limit_s)
        answer = self.process.stdout.readline()
        if not answer:
            self.end()
            raise RuntimeError(f"{FORKED.name} has ended, before a program or with it; stderr says why")
        return int(answer)

    def end(self) -> None:
        """Kill it and what it has forked. The next program gets another parent."""
        _parent.cache_clear()
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@functools.cache
def _parent() -> _Parent:
    return _Parent()
