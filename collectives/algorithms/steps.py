"""What the algorithms are written in: a generator that yields whatever it waits for.

An algorithm is a function of a communicator and of what a transport gets: the request, the operand, and the array for
the result (see `protocol.Communicator`). It posts its receives, lends the arrays that it sends, yields each pending
communication that it needs before it goes on, and returns the result. `finish` runs one to its end; a nonblocking call
advances it by tests instead (`selected`). Long arrays travel in pieces, so that one piece is added while the next ones
are on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import numpy as np

from autograd.layouts.partition import parts

from ..transports.protocol import Array, Communicator, Pending, Request

__all__ = ["SEGMENT_BYTES", "Steps", "adder", "bounds_of", "cut", "finish", "give", "piece_count", "pieces", "receive",
           "segments", "swap", "take"]  # fmt: skip

T = TypeVar("T")
Steps = Generator[Pending[Any], None, T]

SEGMENT_BYTES = 256 * 1024
"""The longest message of the algorithms that choose no length themselves: a piece stays in a core's cache while it is
added, and is long enough for the cost of a message not to count."""


def finish(steps: Steps[T]) -> T:
    """Run an algorithm to its end and return its result."""
    try:
        while True:
            next(steps).wait()
    except StopIteration as stop:
        result: T = stop.value
        return result


def piece_count(size_bytes: int) -> int:
    """The number of messages that an array of so many bytes travels in."""
    return -(-size_bytes // SEGMENT_BYTES)


def pieces(x: Array) -> list[slice]:
    """An array in pieces of at most `SEGMENT_BYTES`; none if it is empty."""
    return segments(x.size, piece_count(x.nbytes))


def segments(size: int, count: int) -> list[slice]:
    """`size` elements in at most `count` nearly equal slices, none of them empty."""
    count = min(size, count)
    ends = [size * i // count for i in range(count + 1)] if count else []
    return [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]


def bounds_of(counts: Sequence[int] | None) -> list[int]:
    """Where each part starts, and the end of the last one."""
    bounds = [0]
    for count in counts or ():
        bounds.append(bounds[-1] + int(count))
    return bounds


def cut(x: Array, bounds: Sequence[int]) -> list[Array]:
    """Views of the parts of an array."""
    return [x[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]


def even_bounds(size: int, count: int) -> list[int]:
    """Bounds of `count` nearly equal parts, by numpy's array_split rule."""
    return bounds_of(parts(size, count)[0])


def adder(a: Array, b: Array, out: Array) -> Callable[[slice], Any]:
    """``out = a + b`` for the piece that has arrived."""
    return lambda piece: np.add(a[piece], b[piece], out=out[piece])


def receive(group: Communicator, into: Array, src: int) -> Pending[Array]:
    """Start to receive from one rank."""
    return group.start(Request("recv", out=into, peer=src))


def swap(
    group: Communicator, out: Array, dst: int, into: Array, src: int, then: Callable[[slice], Any] | None = None
) -> Steps[None]:
    """Send `out` to one rank while `into` arrives from another; `then` gets each piece that has arrived.

    At the end everything has left too, so that `out` may be written to.
    """
    arriving = [(piece, receive(group, into[piece], src)) for piece in pieces(into)]
    leaving = [group.lend(out[piece], dst) for piece in pieces(out)]
    for piece, pending in arriving:
        yield pending
        if then is not None:
            then(piece)
    yield from leaving


def give(group: Communicator, x: Array, dst: int) -> Steps[None]:
    """Send to one rank."""
    yield from [group.lend(x[piece], dst) for piece in pieces(x)]


def take(group: Communicator, into: Array, src: int, then: Callable[[slice], Any] | None = None) -> Steps[None]:
    """Receive from one rank."""
    arriving = [(piece, receive(group, into[piece], src)) for piece in pieces(into)]
    for piece, pending in arriving:
        yield pending
        if then is not None:
            then(piece)
