"""Record the communication of this rank for a replay: `record`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from autograd.errors import MeshError, OptionError, short, typed_errors

from ..transports.job import Replayed
from ..transports.recording import attached, replay_line, start, why
from ..world import World, world

__all__ = ["record"]


@typed_errors
@contextmanager
def record(path: str | os.PathLike[str], data: bool = False) -> Iterator[None]:
    """Record how this rank communicates inside the block, so that the job can be run again in one process.

    ``python -m collectives replay path`` runs the program again, with equal bits. All ranks enter the block, before
    their first communication: a replay runs the program from its beginning. It does not communicate. For a program that
    is not changed, ``RINGTAPE_RECORD=DIR`` does the same.

    Parameters
    ----------
    path : path
        A folder. Each rank writes two files in it, which may have arrays that it received: pass them on with care.
    data : bool
        Whether the results of all calls are recorded, so that one rank can be replayed alone. By default the record has
        the order of the calls: a few bytes for each. The replay then runs all ranks together. Both kinds have 32 bits
        of what the rank gave to each call, with which the replay compares what it gives.

    Raises
    ------
    MeshError
        In a dry world, in which nothing is received.
    OptionError
        The file cannot be written, `path` is none, or `data` is neither True nor False.
    MeshError, DtypeError
        At a call that is not recorded: a window that the program makes itself, or an array of a GPU.

    Notes
    -----
    Not recorded: communication that the program makes with mpi4py or in threads of its own.

    Examples
    --------
    >>> import tempfile, autograd as ag, collectives as cc
    >>> def program(path):
    ...     with cc.record(path), cc.Mesh(dp=2):
    ...         return float(cc.all_reduce(ag.tensor(1.0), "dp", to=cc.R).array)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cc.run(program, 2, f"{folder}/run.rtr")
    [2.0, 2.0]
    """
    if not isinstance(path, str | os.PathLike):
        raise OptionError(f"record: path={short(path)} was given; needed: the path of a folder, such as 'run.rtr'")
    if not isinstance(data, bool):
        raise OptionError(f"record: data={short(data)} was given; needed: True, or False for the order of calls alone")
    if Replayed.job is not None:
        with _replayed(os.path.basename(os.path.abspath(os.fspath(path)))):
            yield
        return
    everyone = world()
    if everyone.dry:
        raise MeshError("record: the current world is a dry run, in which nothing is received; needed: real ranks")
    folder, ended = os.path.abspath(os.fspath(path)), ""
    recording = start(folder, everyone, World.current().kind, data, block=os.path.basename(folder))
    try:
        with attached(recording):
            yield
    except BaseException as error:
        ended = why(error)
        error.add_note(f"recorded; to replay: {replay_line(folder, int(everyone.index), data)}")
        raise
    finally:
        recording.end(ended)


@contextmanager
def _replayed(name: str) -> Iterator[None]:
    """A block that was recorded, in the replay of the program."""
    failed: BaseException | None = None
    world()  # the rank of this thread begins
    if Replayed.block is not None:
        Replayed.block(name, None, True)
    try:
        yield
    except BaseException as error:
        failed = error
        raise
    finally:
        if Replayed.block is not None:
            Replayed.block(name, failed, False)
