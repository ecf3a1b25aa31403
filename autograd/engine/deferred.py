"""Deferred: a value that another rank is still sending. Values that were never waited for are an error.

The list of pending values keeps none of them alive: a program may lose a handle, as by an exception, in every step. It
has an `Unwaited` for each, which is all that the error needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from weakref import ref

from ..errors import CommunicationError
from ..layouts.layout import Layout
from ..layouts.partition import local_shape
from .recording import Recording
from .state import state
from .tensor import Tensor

__all__ = ["Deferred", "Unwaited", "refuse_pending"]


class Deferred(Tensor):
    """A value that another rank is still sending: a communication was started, and the first use waits for it.

    It is a Tensor like any other. Its array is filled, and its place on the tape taken, when either is first read.
    Layout, shape and dtype can be read without waiting. The `maker` has

    - ``finish()``, which waits and returns (array, layout, node),
    - ``test()``, which returns True once ``finish`` would return at once,
    - ``what`` and ``site``: the call, and its line in the user's program,
    - ``mesh`` and ``place``: its mesh, and where on the tape it was started, for `Unwaited`.
    """

    __slots__ = ("__weakref__", "_maker", "_outline", "site", "what")
    _waits = True

    def __init__(self, maker: Any, outline: Any, layout: Layout | None, tape: Recording | None):
        _layout_slot.__set__(self, layout)
        self.tape = tape
        self._maker = maker
        self._outline = outline  # a Shaped: shape and dtype of the array before it arrives; None if unknown
        self.what, self.site = maker.what, maker.site
        pending = state.pending
        state.pending = [*(_merged(pending) if pending else ()), Unwaited(self, maker, tape)]

    def wait(self) -> Tensor:
        """Wait until the value has arrived, and return this object."""
        if self._maker is not None:
            array, layout, node = self._maker.finish()
            _array_slot.__set__(self, array)
            _layout_slot.__set__(self, layout)
            _node_slot.__set__(self, node)
            if node < 0:
                self.tape = None  # the value has no derivative, or was not recorded
            self.drop()
        return self

    def test(self) -> bool:
        """True once `wait` would return at once. Makes progress, never blocks."""
        return self._maker is None or self._maker.test()

    def drop(self) -> None:
        """Remove it from the list of pending values."""
        self._maker = None
        state.pending = [x for x in state.pending if x.handle() is not self]

    def _found(self, slot: Any) -> Any:
        if self._maker is not None:
            self.wait()
        try:
            return slot.__get__(self)
        except AttributeError:
            raise CommunicationError(
                f"{self.what}, started at {self.site}, has no value, because an error ended the communication"
            ) from None

    array = property(lambda self: self._found(_array_slot))
    node = property(lambda self: self._found(_node_slot))

    @property
    def layout(self) -> Layout | None:  # type: ignore[override]  # a slot of Tensor's, read through
        layout = _layout_slot.__get__(self)
        return self._found(_layout_slot) if layout is None else layout

    @property
    def shape(self) -> tuple[int, ...]:
        if self._maker is None or self._outline is None:
            return super().shape
        shape, layout = self._outline.shape, self.layout
        return shape if layout is None or not layout.special else local_shape(layout, shape)

    @property
    def dtype(self) -> Any:
        return self.array.dtype if self._maker is None or self._outline is None else self._outline.dtype

    def __repr__(self) -> str:
        return super().__repr__() if self._maker is None else f"Deferred({self.what}, started at {self.site})"


_array_slot: Any = Tensor.__dict__["array"]
_layout_slot: Any = Tensor.__dict__["layout"]
_node_slot: Any = Tensor.__dict__["node"]


class Unwaited:
    """A communication that was started and not waited for yet, or `count` equal ones whose handles are lost.

    Attributes
    ----------
    handle : callable
        Returns the `Deferred`; None once nobody can wait for it.
    tape, place : the recording, and where on it the communication was started
    what, site, mesh : those of the maker
    """

    __slots__ = ("count", "handle", "mesh", "place", "site", "tape", "what")

    def __init__(self, handle: Deferred, maker: Any, tape: Recording | None):
        self.handle, self.tape, self.count = ref(handle), tape, 1
        self.what, self.site, self.mesh, self.place = maker.what, maker.site, maker.mesh, maker.place

    @property
    def is_lost(self) -> bool:
        """Whether nobody can wait for it any more."""
        return self.handle() is None


def _merged(pending: Sequence[Unwaited]) -> list[Unwaited]:
    """The list with one entry for all lost handles of a call site outside of tapes, whose blocks end soon."""
    found: list[Unwaited] = []
    lost: dict[tuple[str, int], Unwaited] = {}
    for x in pending:
        if x.tape is None and x.is_lost:
            known = lost.setdefault((x.site, id(x.mesh)), x)
            if known is not x:
                known.count += x.count
                continue
        found.append(x)
    return found


def refuse_pending(mine: Sequence[Unwaited], when: str, failed: bool) -> None:
    """Drop pending values that were never waited for, and raise a CommunicationError that lists them, unless `failed`.

    It does not wait for them, so it cannot hang. `failed` means that another error is being raised already.
    """
    state.pending = [x for x in state.pending if x not in mine]
    for x in mine:
        handle = x.handle()
        if handle is not None:
            handle.drop()
    if mine and not failed:
        times: Counter[str] = Counter()
        for x in mine:
            times[f"  {x.what} started at {x.site}"] += x.count
        lines = [text if n == 1 else f"{text} ({n} times)" for text, n in times.items()]
        count = times.total()
        raise CommunicationError(
            f"{when}, and {count} communication{'s were' if count > 1 else ' was'} started and never waited "
            "for\n" + "\n".join(lines) + "\n  needed: a use of its result, or handle.wait(), before that\n"
            "  fix: handle.wait() where the value is needed, or leave the call out on every rank"
        )
