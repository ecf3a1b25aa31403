"""Record the results of a rank's communication, from which `replay` runs the rank again, alone and with equal bits.

The observer of a thread sees each call of its communicators once, whatever algorithm or transport runs it. Its result
is all that the program gets from other ranks. Results of started calls are recorded at their wait.
"""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from collections.abc import Callable
from threading import get_ident
from typing import Any

from autograd import environment
from autograd.errors import OptionError, short
from autograd.machine import environment_of_bits, processor

from ..job.failure import process
from .protocol import Communicator, Pending, Request, observers, quietly
from .record_file import RecordWriter, encoded, path_of
from .request import shown

__all__ = ["SENT", "Numbering", "Recording", "begin", "described", "facts"]

SENT = frozenset(("send", "lend"))
_ALONE = frozenset(("send", "lend", "recv"))  # calls of one rank to itself, which a channel of one rank has too
_BLAS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def described(request: Request) -> str:
    """A call in words, by which a replay sees that the program makes the call that was recorded.

    Examples
    --------
    >>> import numpy
    >>> described(Request("all_reduce", numpy.zeros(3), op="max"))
    'all_reduce max float64[3]'
    """
    given = request.out if request.x is None else request.x
    words = shown(request)
    if request.call == "agree" or given is None or isinstance(given, bytes):
        return words
    words = f"{words} {given.dtype}[{given.size}]"
    return f"{words} peer {request.peer}" if request.call in _ALONE else words


class Numbering:
    """Numbers the calls of each channel: a call is found again by its channel and number."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def next(self, group: Communicator, request: Request) -> str:
        """The key of a call. Comparisons belong to the call that follows them."""
        channel = f"{group.name} of {','.join(map(str, group.ranks))}"
        if request.call == "agree":
            return f"before {self._counts[channel] + 1} on {channel}: {request.x}"
        self._counts[channel] += 1
        return f"{self._counts[channel]} on {channel}"

    @staticmethod
    def passes(group: Communicator, request: Request) -> bool:
        """Whether the result of a call does not depend on other ranks."""
        return group.size == 1 and request.call not in _ALONE


class Recording:
    """The observer that records the calls of one rank in a file.

    Parameters
    ----------
    writer : RecordWriter
    """

    def __init__(self, writer: RecordWriter):
        self.writer = writer
        self._numbering = Numbering()

    def __call__(self, group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        if self._numbering.passes(group, request):
            return run()
        key = self._numbering.next(group, request)
        result = self._of(group, key, request, run, not started or request.call in SENT)
        if not started or request.call in SENT:
            return result
        return _Recorded(result, lambda wait: self._of(group, key, request, wait, True))

    def _of(self, group: Communicator, key: str, request: Request, run: Callable[[], Any], ends: bool) -> Any:
        """Run a part of a call; record its error, or its result where the call `ends` with it."""
        line: dict[str, Any] = {"key": key, "call": described(request)}
        try:
            result = run()
        except Exception as error:
            self.writer.add(line | {"error": [type(error).__name__, str(error)]})
            raise
        if ends:
            line["result"], data = encoded(None if request.call in SENT else result)
            if group.checks is not None:  # which of the next calls are compared
                sampling = group.checks.sampling
                line["sampling"] = [sampling.agreed, sampling.opens]
            self.writer.add(line, data)
        return result


class _Recorded(Pending[Any]):
    """A started call whose first wait is recorded."""

    __slots__ = ("_inner", "_record")

    def __init__(self, inner: Pending[Any], record: Callable[[Callable[[], Any]], Any]):
        super().__init__(None, None)
        self._inner: Pending[Any] | None = inner
        self._record = record

    def test(self) -> bool:
        return self._inner is None or bool(quietly(self._inner.test))

    def wait(self) -> Any:
        inner = self._inner
        if inner is not None:
            self._result = self._record(lambda: quietly(inner.wait))
            self._inner = None
        return self._result


def facts(everyone: Communicator, kind: str) -> dict[str, Any]:
    """The facts of a rank's program: how to run it again, and on what its bits depend."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    path = getattr(main, "__file__", None)
    kept = (*environment.VARIABLES, *_BLAS)
    return {
        "rank": int(everyone.index), "size": int(everyone.size), "kind": kind, "hosts": list(map(int, everyone.hosts)),
        "program": None if path is None else os.path.abspath(path), "module": spec.name if spec else None,
        "arguments": sys.argv[1:], "folder": os.getcwd(),
        "environment": {name: os.environ[name] for name in kept if name in os.environ}, "bits": bits(),
    }  # fmt: skip


def bits() -> dict[str, Any]:
    """Facts on which the bits of a computation depend beside the program."""
    return {"processor": processor(), "python": platform.python_version(), **environment_of_bits()}


def start(folder: str, everyone: Communicator, kind: str) -> Recording:
    """A recording of one rank in a new file."""
    try:
        writer = RecordWriter(path_of(folder, int(everyone.index)))
    except OSError as error:
        text = f"the record {short(folder)} cannot be written: {error}\n  fix: a folder that can be written"
        raise OptionError(text) from error
    writer.add(facts(everyone, kind))
    return Recording(writer)


def attach(recording: Recording) -> None:
    """Record the calls of the calling thread from now on, beside its observer."""
    outer = observers.get(get_ident())

    def both(group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        return recording(group, request, started, run if outer is None else lambda: outer(group, request, started, run))

    observers[get_ident()] = both


class _OfProcess:
    """The recordings that the environment demands, by rank."""

    recordings: dict[int, Recording] = {}


def begin(everyone: Communicator, kind: str) -> None:
    """Record this rank in the folder ``RINGTAPE_RECORD``, from now to the end of its thread."""
    rank, known = int(everyone.index), _OfProcess.recordings
    if rank not in known:
        folder = os.path.abspath(environment.value("RINGTAPE_RECORD"))
        known[rank] = start(folder, everyone, kind)
        if kind == "mpi":
            _say_at_failure(folder, rank)
    attach(known[rank])


def around(program: Callable[..., Any], everyone: Callable[[], Communicator]) -> Callable[..., Any]:
    """The program of ranks that are threads, which records them in the folder ``RINGTAPE_RECORD``."""

    def recorded(*args: Any) -> Any:
        begin(everyone(), "threads")
        try:
            return program(*args)
        except BaseException as error:
            folder = os.path.abspath(environment.value("RINGTAPE_RECORD"))
            error.add_note(f"recorded; to replay: {replay_line(folder, int(everyone().index))}")
            raise

    return recorded


def _say_at_failure(folder: str, rank: int) -> None:
    """If the job ends by an error, say how to replay it."""
    process.before_end.append(lambda text: print(f"recorded: {replay_line(folder, rank)}", file=sys.stderr, flush=True))


def replay_line(folder: str, rank: int) -> str:
    """The command that replays a rank."""
    return f"python -m collectives replay {folder} --rank {rank}"
