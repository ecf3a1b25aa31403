"""Deferred: a value that another rank is still sending. Values that were never waited for are an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import CommunicationError
from ..layouts.layout import Layout
from ..layouts.partition import local_shape
from .recording import Recording
from .state import state
from .tensor import Tensor

__all__ = ["Deferred", "refuse_pending"]


class Deferred(Tensor):
    """A value that another rank is still sending: a communication was started, and the first use waits for it.

    It is a Tensor like any other. Its array is filled, and its place on the tape taken, when either is first read.
    Layout, shape and dtype can be read without waiting. The `maker` has

    - ``finish()``, which waits and returns (array, layout, node),
    - ``test()``, which returns True once ``finish`` would return at once,
    - ``what`` and ``site``: the call, and its line in the user's program,
    - ``mesh`` and ``place``: its mesh, and where on the tape it was started.
    """

    __slots__ = ("_maker", "_outline", "mesh", "place", "site", "what")
    _waits = True

    def __init__(self, maker: Any, outline: Any, layout: Layout | None, tape: Recording | None):
        _layout_slot.__set__(self, layout)
        self.tape = tape
        self._maker = maker
        self._outline = outline  # a Shaped: shape and dtype of the array before it arrives; None if unknown
        self.what, self.site, self.mesh, self.place = maker.what, maker.site, maker.mesh, maker.place
        state.pending = [*state.pending, self]

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
        state.pending = [x for x in state.pending if x is not self]

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


def refuse_pending(mine: Sequence[Any], when: str, failed: bool) -> None:
    """Drop pending values that were never waited for, and raise a CommunicationError that lists them, unless `failed`.

    It does not wait for them, so it cannot hang. `failed` means that another error is being raised already.
    """
    for x in mine:
        x.drop()
    if mine and not failed:
        lines = [f"  {x.what} started at {x.site}" for x in mine]
        raise CommunicationError(
            f"{when}, and {len(mine)} communication{'s were' if len(mine) > 1 else ' was'} started and never waited "
            "for\n" + "\n".join(lines) + "\n  needed: a use of its result, or handle.wait(), before that\n"
            "  fix: handle.wait() where the value is needed, or leave the call out on every rank"
        )
