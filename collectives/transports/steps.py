"""The building blocks of the algorithms, which are generators that yield each communication that they wait for.

An algorithm is a generator function of a communicator, the request, the operand, and the array for the result (see
`protocol.Communicator`). It posts its receives, starts its sends, yields each pending communication that must complete
before it can continue, and returns the result: that array, or one of its own. `finish` runs an algorithm to its end;
nonblocking calls advance it by tests instead (see `selected`). Long arrays are sent in pieces, so that one piece can be
added while the next ones are in transit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import numpy as np

from autograd.layouts.partition import parts

from .protocol import Array, Communicator, Pending, Request

__all__ = ["SEGMENT_BYTES", "Steps", "Whole", "adder", "bounds_of", "cut", "finish", "give", "piece_count", "pieces",
           "receive", "segments", "swap", "take"]  # fmt: skip

T = TypeVar("T")
Steps = Generator[Pending[Any], None, T]

SEGMENT_BYTES = 256 * 1024
"""The longest message, unless an algorithm chooses its own. A piece fits into a core's cache while it is added, and is
long enough that latency is negligible."""


class Whole(Pending[Any]):
    """A call of a communicator as one step. `wait` makes it and blocks, unless `start` has started it.

    Whether it is started must be the same on all ranks. Shared memory, for example, makes only blocking calls itself.
    """

    def __init__(self, group: Communicator, request: Request):
        super().__init__(None, lambda: group.run(request))
        self._group = group
        self._request = request

    def start(self) -> None:
        """Start the call, so that it makes progress in `test`."""
        pending = self._group.start(self._request)
        self._test, self._finish = pending.test, pending.wait


def finish(steps: Steps[T]) -> T:
    """Run an algorithm to its end and return its result."""
    try:
        while True:
            next(steps).wait()
    except StopIteration as stop:
        result: T = stop.value
        return result


def piece_count(size_bytes: int) -> int:
    """The number of messages in which an array of `size_bytes` is sent."""
    return -(-size_bytes // SEGMENT_BYTES)


def pieces(x: Array) -> list[slice]:
    """Slices of an array of at most `SEGMENT_BYTES` each; an empty array has none."""
    return segments(x.size, piece_count(x.nbytes))


def segments(size: int, count: int) -> list[slice]:
    """Split `size` elements into at most `count` nearly equal slices, none of them empty."""
    count = min(size, count)
    ends = [size * i // count for i in range(count + 1)] if count else []
    return [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]


def bounds_of(counts: Sequence[int] | None) -> list[int]:
    """The start of each part, and the end of the last one."""
    bounds = [0]
    for count in counts or ():
        bounds.append(bounds[-1] + int(count))
    return bounds


def cut(x: Array, bounds: Sequence[int]) -> list[Array]:
    """Views of the parts of an array."""
    return [x[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]


def even_bounds(size: int, count: int) -> list[int]:
    """The bounds of `count` nearly equal parts, as numpy.array_split splits."""
    return bounds_of(parts(size, count)[0])


def adder(a: Array, b: Array, out: Array) -> Callable[[slice], Any]:
    """A function that computes ``out = a + b`` for a piece that has arrived."""
    return lambda piece: np.add(a[piece], b[piece], out=out[piece])


def receive(group: Communicator, into: Array, src: int) -> Pending[Array]:
    """Start to receive from one rank."""
    return group.start(Request("recv", out=into, peer=src))


def swap(
    group: Communicator, out: Array, dst: int, into: Array, src: int, then: Callable[[slice], Any] | None = None
) -> Steps[None]:
    """Send `out` to one rank while receiving `into` from another.

    `then` is called with each piece that has arrived. At the end all sends are complete, so `out` may be written to.
    """
    arriving = [(piece, receive(group, into[piece], src)) for piece in pieces(into)]
    leaving = [group.lend(out[piece], dst) for piece in pieces(out)]
    for piece, pending in arriving:
        yield pending
        if then is not None:
            then(piece)
    yield from leaving


def give(group: Communicator, x: Array, dst: int) -> Steps[None]:
    """Send an array to one rank, in pieces."""
    yield from [group.lend(x[piece], dst) for piece in pieces(x)]


def take(group: Communicator, into: Array, src: int, then: Callable[[slice], Any] | None = None) -> Steps[None]:
    """Receive an array from one rank, in pieces; `then` is called with each piece that has arrived."""
    arriving = [(piece, receive(group, into[piece], src)) for piece in pieces(into)]
    for piece, pending in arriving:
        yield pending
        if then is not None:
            then(piece)
