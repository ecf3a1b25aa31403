"""The process of another system, which answers cases and runs programs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Worker"]


class Worker:
    """A process that answers each line with a line. One that has died is replaced."""

    def __init__(self, command: Sequence[str]):
        self._command = list(command)
        self._process: subprocess.Popen[str] | None = None
        self.version = ""

    def _start(self) -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        process = self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env=environment | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        greeting = process.stdout.readline()
        if not greeting:
            raise SystemExit(f"{' '.join(self._command)}: it has ended with status {process.wait()}; see above\n"
                             "  fix: --python PATH, an interpreter that has the system")  # fmt: skip
        self.version = json.loads(greeting)["version"]
        return process

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer to a request; None if the worker died of it."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self.end()
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End the process, if it runs."""
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait()
            self._process = None
