"""Unit vectors and ones of a distributed value, from which Jacobians and elementwise gradients start their sweeps.

A layout says which ranks hold a global element and whether their copies are added. So every rank can compute its part
of "1 at this element, 0 elsewhere" without communication: in a sharded value the rank that owns the element has the 1,
in a Partial value the first rank of the axis, and in a value with equal copies all ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from ..arrays.shape_only import DRY, Shaped, is_absent
from ..engine.distribution import ALONE
from ..engine.state import state
from ..engine.tensor import Tensor
from ..errors import MeshError, ShapeError
from ..layouts.layout import Layout, P, Shard, V
from ..layouts.messages import describe
from ..layouts.partition import require_agreed

__all__ = ["Basis", "ones"]


def ones(x: Tensor, layout: Layout | None) -> Tensor | None:
    """Return ones like `x` in which every global element counts once under `layout`; None where `x` is absent."""
    array = x.array
    if is_absent(array):
        return None
    if type(array) is Shaped:
        return Tensor(array, layout)
    made = np.ones_like(array) if _copy_counts(layout) else np.zeros_like(array)
    return Tensor(made[()] if isinstance(array, np.generic) else made, layout)


def _copy_counts(layout: Layout | None) -> bool:
    """Whether the copy on this rank counts: on Partial axes only that of the first rank does."""
    if layout is None:
        return True
    return all(label is not P or at == 0 for label, at in zip(layout.labels, layout.grid.place, strict=True))


class Basis:
    """The unit vectors of a global value, each as the part that this rank holds.

    The parts of a Varying value are taken to be concatenated along the first dimension, in order of the ranks; numbers
    form one vector with an element per rank. With several Varying axes the earlier ones are the outer ones. The ranks
    then exchange the shapes of their parts once, so all ranks must create the Basis together.

    Attributes
    ----------
    shape : tuple of int
        The shape of the global value.

    Raises
    ------
    LayoutError
        The value is a Shard whose extents the ranks have not agreed on.
    MeshError
        The value is Varying and no mesh is current.
    ShapeError
        The parts of a Varying value differ in dimensions other than the first.
    """

    def __init__(self, x: Tensor, layout: Layout | None):
        self.array = x.array
        self.layout = layout
        local = tuple(int(n) for n in x.array.shape)
        self.local = local
        self.offset = [0] * len(local)
        self.counts = _copy_counts(layout)
        self.shape = local
        if layout is not None:
            require_agreed(layout, local, "jacobian")
            self._shards(layout)
            self._varying(layout)

    def _shards(self, layout: Layout) -> None:
        whole = list(self.local)
        for label in reversed(layout.labels):  # earlier axes are outer ones and have the larger extents
            if isinstance(label, Shard):
                assert label.extent is not None and label.offset is not None
                whole[label.dim] = label.extent
                self.offset[label.dim] += label.offset
        self.shape = tuple(whole)

    def _varying(self, layout: Layout) -> None:
        grid = layout.grid
        axes = [name for name, label in zip(grid.names, layout.labels, strict=True) if label is V]
        if not axes:
            return
        if all(grid.sizes[grid.axis(name)] == 1 for name in axes):
            shapes, mine = [self.shape], 0
        else:
            if state.distribution is ALONE:
                raise MeshError(
                    f"a Jacobian of {describe(self.array, self.local, layout)} needs the shapes on the other ranks, "
                    "and no mesh is current. Fix: call it inside `with cc.Mesh(...):`"
                )
            shapes, mine = state.distribution.shapes(axes, self.shape)
        if not self.local:
            self.local, self.offset, self.shape = (1,), [mine], (len(shapes),)
            return
        if len({s[1:] for s in shapes}) != 1:
            raise ShapeError(
                f"a Jacobian of {describe(self.array, self.local, layout)}, which is Varying over {axes}: the shapes "
                f"on the ranks are {shapes}; needed: equal extents in all dimensions but the first\n  fix: ravel it, "
                "or all_gather it"
            )
        self.offset[0] += sum(s[0] for s in shapes[:mine])
        self.shape = (sum(s[0] for s in shapes), *self.shape[1:])

    def __iter__(self) -> Iterator[Tensor | None]:
        """Iterate over the unit vectors in order of the global index; None where the value is absent on this rank."""
        for at in itertools.product(*map(range, self.shape)):
            yield self.unit(at)

    def unit(self, at: tuple[int, ...]) -> Tensor | None:
        """Return this rank's part of the unit vector with 1 at a global index."""
        array = self.array
        if type(array) is Shaped:
            return None if array.why != DRY else Tensor(array, self.layout)
        place = tuple(i - o for i, o in zip(at, self.offset, strict=True))
        mine = self.counts and all(0 <= i < n for i, n in zip(place, self.local, strict=True))
        if isinstance(array, np.generic):
            return Tensor(type(array)(1 if mine else 0), self.layout)
        made = np.zeros_like(array, order="C")
        if mine:
            made.reshape(self.local)[place] = 1
        return Tensor(made, self.layout)
