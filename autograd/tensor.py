"""Tensor: an array, its layout, and its place on a tape.

An interior Tensor is the result of an operation; what users make are leaves (`leaves`), what another rank is still
sending is `Deferred` (`deferred`). Operators and NumPy's methods come from a table (`methods`). Tensors are immutable
as far as the tape is concerned: operations return new ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import TapeError
from .layout import Layout, V
from .methods import Methods

if TYPE_CHECKING:
    from .grid import Grid
    from .tape import Recording

__all__ = ["FREE", "TENSORS", "Tensor", "interior"]

OUTSIDE = -1
"""The place of a value that was made while nothing recorded; a leaf's, too."""
FREE = -2
"""The place of a value that was made while a tape recorded, and depends on nothing that it follows."""

TENSORS: set[Any] = set()
"""Tensor and its subclasses: dispatch asks for an operand's class in here, which costs a tenth of `isinstance`."""


class Tensor(Methods):
    """A value: its array here, its layout over the mesh, and its place on a tape."""

    __slots__ = ("array", "layout", "node", "tape")
    name = ""
    _requires_grad = False  # whether it is a leaf that a tape is to follow

    array: Any  # this rank's part, for ringtape's own use: nothing guards it; `Shaped` where the value is absent
    layout: Layout | None  # one label per mesh axis; None where no mesh is in play
    tape: Recording | None  # where it was recorded; None where nothing that it depends on is differentiated
    node: int

    def __init__(self, array: Any, layout: Layout | None = None, tape: Recording | None = None, node: int = OUTSIDE):
        self.array = array
        self.layout = layout
        self.tape = tape
        self.node = node

    def __init_subclass__(cls) -> None:
        TENSORS.add(cls)

    @property
    def requires_grad(self) -> bool:
        """Whether a tape follows it."""
        return self.tape is not None

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient of a leaf; None for the result of an operation."""
        return None

    def labelled(self, grid: Grid) -> Layout:
        """Its layout under a mesh; a leaf without labels is given them for good when a mesh first meets it."""
        return self.layout if self.layout is not None else grid.uniform(V)

    def backward(self, cotangent: Any = None, *, retain: bool = False) -> None:
        """The same as ``tape.backward(self)`` on the whole tape that recorded it."""
        if self.tape is None:
            raise TapeError(
                "backward of a value that depends on no leaf: nothing was recorded. Needed: a Parameter, or a tensor "
                "with requires_grad=True, used inside `with ag.Tape():`"
            )
        self.tape.whole().backward([self], None if cotangent is None else [cotangent], retain=retain)


TENSORS.add(Tensor)
_new = object.__new__


def interior(array: Any, layout: Layout | None, tape: Recording | None, node: int) -> Tensor:
    """A Tensor, made for half the price of calling the class."""
    x = _new(Tensor)
    x.array = array
    x.layout = layout
    x.tape = tape
    x.node = node
    return x
