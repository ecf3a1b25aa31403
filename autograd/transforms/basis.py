"""Units and ones of a value that several ranks hold: what sweeps over the global index start from.

A layout says which ranks hold a global element and whether their copies add up. So every rank can make its part of
"1 at this element, 0 elsewhere" for itself: where parts are sharded, the rank that owns the element has the 1; where
addends are held (P), the axis' first rank; where copies are, all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from ..arrays.shape_only import DRY, Shaped, is_absent
from ..engine.state import state
from ..engine.tensor import Tensor
from ..errors import MeshError, ShapeError, call_site
from ..layouts.layout import C, I, Layout, P, Shard, V
from ..layouts.messages import describe

__all__ = ["Basis", "ones"]


def ones(x: Tensor, layout: Layout | None) -> Tensor | None:
    """Ones of the shape of `x`, each global element counting once under `layout`; None where it is absent."""
    array = x.array
    if is_absent(array):
        return None
    if type(array) is Shaped:
        return Tensor(array, layout)
    made = np.ones_like(array) if _counts(layout) else np.zeros_like(array)
    return Tensor(made[()] if isinstance(array, np.generic) else made, layout)


def _counts(layout: Layout | None) -> bool:
    """Whether this rank's copy is the one that counts: of addends, the first rank's alone."""
    if layout is None:
        return True
    return all(label is not P or at == 0 for label, at in zip(layout.labels, layout.grid.place, strict=True))


class Basis:
    """The global unit vectors of a value, each as this rank's part of it.

    A Varying value counts as parts that lie along its first dimension, in order of the ranks (numbers: as one vector,
    an element a rank). So does one that is V on several axes, the earlier ones outermost. What the other ranks' parts
    are is asked of them then, once: all ranks make a Basis of the same value together.

    Attributes
    ----------
    shape : tuple of int
        Of the whole value.
    """

    def __init__(self, x: Tensor, layout: Layout | None):
        self.array = x.array
        self.layout = layout
        local = tuple(int(n) for n in x.array.shape)
        self.local = local
        self.offset = [0] * len(local)
        self.counts = _counts(layout)
        self.shape = local
        if layout is not None:
            self._shards(layout)
            self._varying(layout)

    def _shards(self, layout: Layout) -> None:
        whole = list(self.local)
        for label in reversed(layout.labels):  # an earlier axis is the outer one: its extent is the larger
            if isinstance(label, Shard) and label.extent is not None and label.offset is not None:
                whole[label.dim] = label.extent
                self.offset[label.dim] += label.offset
        self.shape = tuple(whole)

    def _varying(self, layout: Layout) -> None:
        grid = layout.grid
        axes = [
            name for name, label in zip(grid.names, layout.labels, strict=True)
            if label is V or (isinstance(label, Shard) and label.extent is None)
        ]  # fmt: skip
        if not axes:
            return
        if all(grid.sizes[grid.axis(name)] == 1 for name in axes):
            shapes, mine = [self.shape], 0
        else:
            if state.mesh is None:
                raise MeshError(
                    f"a Jacobian of {describe(self.array, self.local, layout)} with no mesh current: what the other "
                    "ranks hold cannot be asked. Fix: call it inside `with cc.Mesh(...):`" + call_site()
                )
            shapes, mine = state.mesh.shapes(axes, self.shape)
        if not self.local:
            self.local, self.offset, self.shape = (1,), [mine], (len(shapes),)
            return
        if len({s[1:] for s in shapes}) != 1:
            raise ShapeError(
                f"a Jacobian of {describe(self.array, self.local, layout)}, which is Varying over {axes}: the ranks' "
                f"shapes are {shapes}, and parts along the first dimension must agree in the others\n  fix: ravel it, "
                "or all_gather it" + call_site()
            )
        self.offset[0] += sum(s[0] for s in shapes[:mine])
        self.shape = (sum(s[0] for s in shapes), *self.shape[1:])

    def __iter__(self) -> Iterator[Tensor | None]:
        """Units in the order of the global index; None where this rank holds no data of the value."""
        for at in itertools.product(*map(range, self.shape)):
            yield self.unit(at)

    def unit(self, at: tuple[int, ...]) -> Tensor | None:
        """1 at a global place and 0 elsewhere: this rank's part."""
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


def is_copied(layout: Layout | None) -> bool:
    """Whether it and its cotangent are the same on every rank: I on every axis, or no mesh at all."""
    return layout is None or all(label is I or label is C for label in layout.labels)
