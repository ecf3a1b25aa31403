"""Replay a record in this process: `replaying` makes the worlds of a program replay it, by its data or by its order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from autograd.errors import MeshError

from ..job import Job, Options, Replayed
from ..protocol import observers
from .data import Replay, ReplayJob
from .order import Order, OrderJob
from .recorded import Record

__all__ = ["replaying"]


@contextmanager
def replaying(record: Record, rank: int | None = None) -> Iterator[Order]:
    """Inside the block, worlds of the record's kind replay it. Of ranks that were threads, all run.

    Parameters
    ----------
    record : Record
    rank : int, optional
        The rank that this program runs as, if the ranks were processes and the record has its data; by default the
        lowest one. A record without data is replayed by `OrderJob.run_processes`, which starts all ranks.

    Yields
    ------
    Order
        The calls with another result than was recorded, for a record without data.
    """
    facts, calls, order = record.any, dict[int, Replay](), Order(record)
    is_threads = facts["kind"] == "threads"

    def job(options: Options) -> Job | None:
        if options.kind == "dry":
            return None
        if is_threads:
            if options.ranks in (None, 1) and facts["size"] > 1:
                return None
            if options.kind == "threads" and options.ranks not in (None, facts["size"]):
                raise MeshError(
                    f"a world of {options.ranks} ranks in a replay: {record.folder} was recorded with {facts['size']}\n"
                    f"  fix: the program and arguments of the record, which run {facts['size']} ranks"
                )
        elif options.kind == "threads" and (options.ranks or 1) > 1:
            return None
        if record.has_data:
            ranks = sorted(record.calls) if is_threads else [facts["rank"] if rank is None else rank]
            return ReplayJob(record, ranks, is_threads, calls)
        return OrderJob(order, options.raises) if is_threads else order.job_of_thread()

    before, Replayed.job = Replayed.job, job
    outer = observers.pop(get_ident(), None)
    try:
        yield order
    finally:
        Replayed.job = before
        observers.pop(get_ident(), None)
        if outer is not None:
            observers[get_ident()] = outer
