"""Record a rank's communication, from which `replay` runs the rank again with equal bits.

The observer of a thread sees each call of its communicators once, whatever algorithm or transport runs it. Its result
is all that the program gets from other ranks. Results of started calls are recorded at their wait.

A record has the order: the name of each call, and digests of what the rank gave for it and of its result. A replay runs
all ranks, and they communicate again. Only results that another transport would not give again are recorded: sums of
MPI's own reductions, whose order of additions is the library's. Two ranks have one order. With its `data`, a record has
the result of every call, and each rank can be replayed alone.

What a rank gave is compared, and not only what the ranks have agreed on: a recorded sum takes the place of that of
other addends, and a sum may be equal although its addends are not.
"""

from __future__ import annotations

import atexit
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import numpy as np

from autograd import environment
from autograd.errors import DtypeError, MeshError, OptionError, short

from ..job.failure import process
from . import program_facts
from .protocol import Communicator, Observer, Pending, Request, observers, quietly
from .record_file import CALL, SAMPLING, RecordWriter, digest_of, path_of
from .request import REDUCTIONS, shown

__all__ = [
    "LEAST", "SENT", "Numbering", "Recording", "around", "attached", "begin", "described", "digest_of_given",
    "is_checked", "passes", "replay_line", "start", "why",
]  # fmt: skip

SENT = frozenset(("send", "lend"))
LEAST = 0xFFFFFFFF
"""At least this many: the number that stands for infinity in a record."""
_ALONE = frozenset(("send", "lend", "recv"))  # calls of one rank to itself, which a channel of one rank has too
_OF_OUTSIDE = ("checkpoint.", "Preemption.")
_NOT_RECORDED = frozenset(("window", "clocks", "arrivals"))
_ROOTED = frozenset(("broadcast", "reduce", "gather", "scatter"))
_BY_PLACE = frozenset(("gather", "all_gather", "scatter", "reduce_scatter", "all_to_all", "scan", "get", "accumulate"))


def described(request: Request) -> str:
    """A call in words, by which a replay sees that the program makes the call that was recorded.

    Examples
    --------
    >>> described(Request("all_reduce", np.zeros(3), op="max"))
    'all_reduce max float64[3]'
    """
    given, call = request.out if request.x is None else request.x, request.call
    words = shown(request)
    if call == "agree" or isinstance(given, bytes):
        return words
    if given is not None:
        words = f"{words} {getattr(given, 'dtype', type(given).__name__)}[{getattr(given, 'size', 1)}]"
    if call in _ROOTED:
        words = f"{words} root {int(request.root)}"
    return f"{words} peer {request.peer}" if call in _ALONE else words


def digest_of_given(request: Request) -> int:
    """32 bits of what this rank gives to a call: its operand, and the places of parts. 0 where it gives nothing."""
    digest = digest_of(request.x)
    if request.call in _BY_PLACE:
        places = [request.counts, request.receive_counts, request.options]
        return zlib.crc32(repr([None if each is None else [*map(_plain, each)] for each in places]).encode(), digest)
    return digest


def _plain(x: Any) -> Any:
    """A number or nested numbers, without the class that they have on a mesh."""
    return tuple(map(_plain, x)) if isinstance(x, list | tuple) else int(x)


def passes(group: Communicator, request: Request) -> bool:
    """Whether the result of a call does not depend on other ranks."""
    return group.size == 1 and request.call not in _ALONE


def is_checked(request: Request) -> bool:
    """Whether the results of such calls are equal in a replay. Control messages may have facts of the machine."""
    return request.call != "exchange" and request.call not in SENT


def is_of_outside(request: Request) -> bool:
    """Whether the results of such calls depend on files and signals, and not only on the program."""
    return request.call == "exchange" and bool(request.options) and request.options[0].startswith(_OF_OUTSIDE)


class Numbering:
    """Numbers the calls of each channel: a call is found again by its channel and number."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def next(self, group: Communicator, request: Request) -> tuple[str, int, str]:
        """The key of a call: channel, number, and of a comparison its text. It belongs to the call that follows."""
        channel = group.identity
        if request.call == "agree":
            return channel, self._counts[channel] + 1, request.x
        self._counts[channel] += 1
        return channel, self._counts[channel], ""

    def count(self, channel: str) -> int:
        """The number of calls of a channel."""
        return self._counts[channel]


class _Channel:
    """A channel: its name, the number of its calls, and which of the next ones are compared."""

    __slots__ = ("count", "name", "sampling")

    def __init__(self, name: str):
        self.name, self.count, self.sampling = name, 0, (0.0, 0)


class _Call:
    """Calls of one kind on one channel: their number in the file, and whether their results are recorded.

    `keeps` is None before the first one has returned: `auto` chooses its algorithm then.
    """

    __slots__ = ("channel", "is_checked", "keeps", "number")

    def __init__(self, channel: _Channel, number: int, keeps: bool | None, is_checked: bool):
        self.channel, self.number, self.keeps, self.is_checked = channel, number, keeps, is_checked


class Recording:
    """The observer that records the calls of one rank in a file.

    Parameters
    ----------
    writer : RecordWriter
    data : bool
        Whether the results of all calls are recorded.
    files : iterable of str
        The files of the program whose digests the record has.
    """

    def __init__(self, writer: RecordWriter, data: bool, files: Iterable[str] = ()):
        self.writer, self.data = writer, data
        self._files, self._modules = set(files), 0
        self._channels: dict[Any, _Channel] = {}
        self._calls: dict[Any, _Call] = {}
        self._choices: dict[str, str] = {}

    def __call__(self, group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        name, x, op, _, _, root, peer, _, out, options, _ = request
        if group.size == 1 and name not in _ALONE:
            return run()
        if name == "agree":
            return self._compared(group, request, run)
        shape = out if x is None else x
        key: tuple[Any, ...]
        if shape.__class__ is np.ndarray:
            # two meshes may have channels of one name, and other algorithms
            key = (group.name, group.ranks, group.algorithm, name, op, shape.dtype, shape.size, root, peer, started)
        else:
            key = (group.name, group.ranks, name, shape.__class__, root, options if name == "exchange" else None)
        call = self._calls.get(key)
        if call is None:
            call = self._new(key, group, request)
        channel = call.channel
        channel.count = number = channel.count + 1
        given = digest_of_given(request) if name in _BY_PLACE else digest_of(x)  # before the call: it may change `x`
        is_sent = name in SENT
        try:
            result = run()
        except Exception as error:
            self._failed(call, number, error)
            raise
        if started and not is_sent:
            return _Recorded(result, lambda wait: self._waited(call, number, given, group, request, wait))
        if call.keeps is False:
            self.writer.add(CALL, call.number, number, digest_of(result) if call.is_checked else 0, given)
        else:
            self._ended(call, number, given, group, request, started, None if is_sent else result)
        return result

    def _new(self, key: Any, group: Communicator, request: Request) -> _Call:
        """Record the name of a call that was not made before."""
        given = request.out if request.x is None else request.x
        if request.call in _NOT_RECORDED:
            raise MeshError(
                f"record: {request.call} on '{group.name}': ranks access its memory at any time, which is not "
                "recorded; needed: calls of all ranks, or messages\n  fix: run this program without a record"
            )
        if not isinstance(given, np.ndarray | bytes | list | None):
            kind = f"{type(given).__module__}.{type(given).__name__}"
            raise DtypeError(
                f"record: {request.call} on '{group.name}' of a {kind}: arrays of a GPU are not "
                "recorded; needed: arrays of the host\n  fix: run this program on the CPU, or without a record"
            )
        channel = self._channel(group)
        self.add_files()
        found = self._calls[key] = _Call(
            channel, len(self._calls), True if self.data or is_of_outside(request) else None, is_checked(request)
        )
        self.writer.add_text({"id": found.number, "call": described(request), "channel": channel.name})
        return found

    def add_files(self) -> None:
        """Record digests of the program's files that were imported since the last time."""
        if self._modules != (count := len(sys.modules)):
            self._modules = count
            if found := program_facts.new_files(self._files):
                self._files |= found.keys()
                self.writer.add_text({"files": found})

    def end(self, why: str = "") -> None:
        """Record that the rank has come to the end, or the error that ended it. Records without it were cut off."""
        if self.writer.is_open:
            try:
                self.add_files()
                self.writer.add_text({"end": why})
            finally:  # the disk may be full
                self.writer.close()

    def _channel(self, group: Communicator) -> _Channel:
        key = group.name, group.ranks
        found = self._channels.get(key)
        if found is None:
            found = self._channels[key] = _Channel(group.identity)
        return found

    def _compared(self, group: Communicator, request: Request, run: Callable[[], Any]) -> Any:
        """Of a comparison only an error is recorded."""
        try:
            return run()
        except Exception as error:
            channel = self._channel(group)
            line = {"before": channel.name, "text": request.x, "error": [type(error).__name__, str(error)]}
            self.writer.add_text(line, channel.count + 1)
            raise

    def _waited(
        self, call: _Call, number: int, given: int, group: Communicator, request: Request, wait: Callable[[], Any]
    ) -> Any:
        try:
            result = wait()
        except Exception as error:
            self._failed(call, number, error)
            raise
        self._ended(call, number, given, group, request, True, result)
        return result

    def _failed(self, call: _Call, number: int, error: Exception) -> None:
        self.writer.add_text({"of": call.number, "error": [type(error).__name__, str(error)]}, number)

    def _ended(
        self, call: _Call, number: int, given: int, group: Communicator, request: Request, started: bool, result: Any
    ) -> None:
        keeps = call.keeps
        if keeps is None:
            self._note_choices(group)
            keeps = call.keeps = is_of_library(group, request, started)
        if not keeps:
            self.writer.add(CALL, call.number, number, digest_of(result) if call.is_checked else 0, given)
            return
        checks = group.checks
        if checks is not None and self.data:  # which of the next calls are compared
            sampling = checks.sampling.agreed, checks.sampling.opens
            if sampling != call.channel.sampling:
                call.channel.sampling = sampling
                self.writer.add(SAMPLING, int(min(sampling[0], LEAST)), min(sampling[1], LEAST), 0)
        self.writer.add_result(call.number, number, result, given)

    def _note_choices(self, group: Communicator) -> None:
        """Record the table of ``auto`` that a group follows, once it does."""
        known = getattr(group, "settled_choices", None)
        if known is not None and known.rows and group.name not in self._choices:
            self._choices[group.name] = known.source
            self.writer.add_text({"choices": known.rows, "source": known.source, "channel": group.identity})


def is_of_library(group: Communicator, request: Request, started: bool) -> bool:
    """Whether the bits of a result, on this rank, depend on the order in which the MPI library has added.

    The first rank has the sum for all. Two addends have one order, as far as one rank has only one of them.
    """
    x = request.x
    if not group.are_processes or request.call not in REDUCTIONS or request.op == "max" or x is None:
        return False
    if x.dtype.kind not in "fcV" or (request.call == "all_reduce" and group.index):
        return False
    if request.call == "accumulate":
        return True
    algorithm = group.explain(request)[0]
    is_whole = algorithm == "native" or "native" in algorithm.partition(":")[2]
    # shared memory and the levels of hosts leave started calls to the library
    return group.size > 2 and (is_whole or (started and algorithm.startswith(("shared", "hierarchical"))))


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


def start(
    folder: str, everyone: Communicator, kind: str, data: bool, block: str | None = None
) -> Recording:
    """A recording of one rank in a new file: of all of the program, or of a block, named as its folder."""
    try:
        writer = RecordWriter(path_of(folder, int(everyone.index)))
    except OSError as error:
        text = f"the record {short(folder)} cannot be written: {error}\n  fix: a folder that can be written"
        if environment.value("RINGTAPE_RECORD"):
            text += ", in RINGTAPE_RECORD"
        raise OptionError(text) from error
    facts = program_facts.facts(everyone, kind, data, block)
    writer.add_text(facts)
    return Recording(writer, data, facts["files"])


@contextmanager
def attached(recording: Recording) -> Iterator[None]:
    """Record the calls of the calling thread inside the block, beside its observer."""
    thread = get_ident()
    outer = _attach(recording)
    try:
        yield
    finally:
        if outer is None:
            observers.pop(thread, None)
        else:
            observers[thread] = outer


def _attach(recording: Recording) -> Observer | None:
    """Record the calls of the calling thread from now on. Returns the observer that it has had."""
    outer = observers.get(get_ident())

    def both(group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        assert outer is not None
        return recording(group, request, started, lambda: outer(group, request, started, run))

    observers[get_ident()] = recording if outer is None else both
    return outer


class _OfProcess:
    """The recordings that the environment demands, by rank, and why the last run of each rank has failed."""

    recordings: dict[int, Recording] = {}
    failures: dict[int, str] = {}
    size = 0


def _recording_of(everyone: Communicator, kind: str) -> Recording:
    """The recording of a rank in the folder ``RINGTAPE_RECORD``, which ends with the process."""
    rank, known = int(everyone.index), _OfProcess.recordings
    if _OfProcess.size not in (0, everyone.size):
        raise MeshError(
            f"RINGTAPE_RECORD: a world of {everyone.size} ranks, after one of {_OfProcess.size}; needed: one number of "
            "ranks in a record\n  fix: with cc.record(...) in the program of one of them"
        )
    _OfProcess.size = everyone.size
    if rank not in known:
        recording = known[rank] = start(_folder(), everyone, kind, _has_data())
        atexit.register(lambda: recording.end(_OfProcess.failures.get(rank, "")))
    return known[rank]


def begin(everyone: Communicator, kind: str) -> None:
    """Record this rank, which is a process, in the folder ``RINGTAPE_RECORD``, from now to its end."""
    if int(everyone.index) not in _OfProcess.recordings:  # else an earlier world of this process has begun it
        recording, rank, thread = _recording_of(everyone, kind), int(everyone.index), get_ident()
        _attach(recording)

        def before_end(text: str) -> None:
            if get_ident() == thread:  # the error is that of this rank
                recording.end(text.partition("\n")[0])
            print(f"recorded: {replay_line(_folder(), rank, _has_data())}", file=sys.stderr, flush=True)

        process.before_end.append(before_end)


def around(program: Callable[..., Any], everyone: Callable[[], Communicator], kind: str) -> Callable[..., Any]:
    """The program of ranks that are threads, which records them in the folder ``RINGTAPE_RECORD``."""

    def recorded(*args: Any) -> Any:
        recording, rank = _recording_of(everyone(), kind), int(everyone().index)
        with attached(recording):
            try:
                result = program(*args)
            except BaseException as error:
                _OfProcess.failures[rank] = why(error)
                error.add_note(f"recorded; to replay: {replay_line(_folder(), rank, _has_data())}")
                raise
            _OfProcess.failures.pop(rank, None)
            return result

    return recorded


def why(error: BaseException) -> str:
    """The error that ends a recorded rank, in one line."""
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _folder() -> str:
    return os.path.abspath(environment.value("RINGTAPE_RECORD"))


def _has_data() -> bool:
    return environment.value("RINGTAPE_RECORD_DATA") == "1"


def replay_line(folder: str, rank: int, data: bool) -> str:
    """The command that replays a record, with the data of which this rank can be replayed alone; and a line on that."""
    if data:
        return f"python -m collectives replay {folder} --rank {rank}\n  this rank alone; without --rank all ranks"
    return (
        f"python -m collectives replay {folder}\n  all ranks together; a record with its data allows one alone: "
        "RINGTAPE_RECORD_DATA=1 or data=True"
    )
