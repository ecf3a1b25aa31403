"""Tensor: an array, its layout, and its place on a tape.

An interior Tensor is the result of an operation; what users make are leaves (`leaves`), what another rank is still
sending is `Deferred` (`deferred`). Operators and NumPy's methods come from a table (`methods`). Tensors are immutable
as far as the tape is concerned: operations return new ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .arrays import is_absent
from .errors import SavedArrayError, TapeError
from .layout import Layout, V
from .methods import Methods
from .parts import global_shape, local_shape
from .saved import guarded

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
    """A value: its array here, its layout over the mesh, and its place on a tape.

    Attributes
    ----------
    array : array
        This rank's part, for ringtape's own use: nothing guards it. A `Shaped` array where the value is absent.
    layout : Layout or None
        One label per mesh axis; None where no mesh is in play.
    tape, node : Recording or None, int
        Where it was recorded; None where nothing that it depends on is differentiated.
    """

    __slots__ = ("array", "layout", "node", "tape")
    name = ""

    array: Any
    layout: Layout | None
    tape: Recording | None
    node: int

    def __init__(self, array: Any, layout: Layout | None = None, tape: Recording | None = None, node: int = OUTSIDE):
        self.array = array
        self.layout = layout
        self.tape = tape
        self.node = node

    def __init_subclass__(cls) -> None:
        TENSORS.add(cls)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of this rank's part; the extent of a sharded dimension knows on which axes it differs."""
        shape = self.array.shape
        return shape if self.layout is None or not self.layout.special else local_shape(self.layout, shape)

    @property
    def global_shape(self) -> tuple[int, ...]:
        """The shape of the whole value; LayoutError where it is Varying, so that there is no one value."""
        return self.array.shape if self.layout is None else global_shape(self.layout, self.array.shape)

    dtype = property(lambda self: self.array.dtype)
    ndim = property(lambda self: len(self.array.shape))
    size = property(lambda self: self.array.size)
    absent = property(lambda self: is_absent(self.array), doc="Whether another rank holds it (it is rooted there).")

    @property
    def requires_grad(self) -> bool:
        """Whether a tape follows it."""
        return self.tape is not None

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient of a leaf; None for the result of an operation."""
        return None

    @property
    def data(self) -> Any:
        """This rank's part as an array; read-only while a tape needs it, None where the value is absent."""
        return None if is_absent(self.array) else guarded(self)

    @data.setter
    def data(self, value: Any) -> None:
        raise SavedArrayError("the array of an operation's result cannot be replaced; needed: a leaf")

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
