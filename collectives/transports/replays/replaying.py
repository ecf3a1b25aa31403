"""Replay a record in this process: `replaying` makes the worlds of a program replay it, by its data or by its order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from autograd.errors import MeshError

from ..job import Job, Options, Replayed, job_of
from ..protocol import observers
from .comparing import Differences
from .data import ReplayJob
from .order import Order, OrderJob
from .recorded import Record

__all__ = ["replaying"]


@contextmanager
def replaying(record: Record, rank: int | None = None, differences: Differences | None = None) -> Iterator[Order]:
    """Inside the block, worlds of the record's kind replay it. Of ranks that were threads, all run.

    Parameters
    ----------
    record : Record
    rank : int, optional
        The rank that this program runs as, if the ranks were processes and the record has its data; by default the
        lowest one. A record without data is replayed by `OrderJob.run_processes`, which starts all ranks.
    differences : Differences, optional
        The differences of ranks that were replayed before.

    Yields
    ------
    Order
        How the ranks differ from the record. At the end of the block they have made all calls, unless they have failed.
    """
    facts, order = record.any, Order(record, differences)
    is_threads = not record.of_processes
    is_alone = record.has_data and not is_threads
    ranks = [facts["rank"] if rank is None else rank] if is_alone else sorted(record.calls)

    def job(options: Options) -> Job | None:
        asked = job_of(options.kind)
        if not (asked.has_processes or asked.runs_programs):
            return None
        if is_threads:
            if options.ranks in (None, 1) and facts["size"] > 1:
                return None
            if asked.runs_programs and options.ranks not in (None, facts["size"]):
                raise MeshError(
                    f"a world of {options.ranks} ranks in a replay: {record.folder} was recorded with {facts['size']}\n"
                    f"  fix: the program and arguments of the record, which run {facts['size']} ranks"
                )
        elif asked.runs_programs and (options.ranks or 1) > 1:
            return None
        if record.has_data:
            return ReplayJob(record, ranks, is_threads, order.differences)
        return OrderJob(order, options.raises) if is_threads else order.job_of_thread()

    before, Replayed.job, Replayed.block = (Replayed.job, Replayed.block), job, order.differences.block
    outer = observers.pop(get_ident(), None)
    try:
        yield order
        order.differences.finish(record, ranks)
    finally:
        Replayed.job, Replayed.block = before
        observers.pop(get_ident(), None)
        if outer is not None:
            observers[get_ident()] = outer
