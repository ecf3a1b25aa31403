"""The process of a worker, from the side of the benchmark: each line that it is sent is answered with a line."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

__all__ = ["Process"]


class Process:
    """A worker that measures one engine, and waits between rounds.

    Parameters
    ----------
    name : str
        The engine's, for errors.
    python : str
        The package that its interpreter needs, for errors: the option that gives it is ``--python-NAME``; "" for none.
    command : sequence of str
    environment : mapping
    """

    def __init__(self, name: str, python: str, command: Sequence[str], environment: Mapping[str, str]):
        self._name, self._python = name, python
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def answer(self) -> str:
        """The worker's next line. The worker prints its errors to standard error itself."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            hint = f"\n  fix: --python-{self._python} PATH, an interpreter that has it" if self._python else ""
            raise SystemExit(f"{self._name}: its process ended with status {self.process.wait()}; see above{hint}")
        return line

    def round(self) -> float:
        """Run one round, and return the median time of a step in microseconds."""
        assert self.process.stdin is not None
        self.process.stdin.write("round\n")
        self.process.stdin.flush()
        return float(self.answer())

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
