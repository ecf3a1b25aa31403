"""Layouts: one label per mesh axis (see `labels`), which tell what all ranks hold of one value.

They are known without communication; what an operation makes of its operands' is `inference`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .dims import Mix, Sum
from .labels import C, D, I, Label, P, R, Rooted, Shard, V, dual_label, may_relabel

if TYPE_CHECKING:
    from .grid import Grid

__all__ = [
    "C", "D", "I", "Label", "Layout", "Mix", "P", "R", "Rooted", "Shard", "Sum", "V", "dual_label", "may_relabel",
]  # fmt: skip


class Layout(Mapping[str, Label]):
    """The labels of one value, one per mesh axis: a read-only mapping, one object per content (see `Grid.layout`)."""

    __slots__ = ("_dual", "drawn", "grid", "labels", "one_number", "rooted", "special")

    def __init__(self, grid: Grid, labels: tuple[Label, ...]):
        self.grid = grid
        self.labels = labels
        self.special = any(type(x) is Shard for x in labels)  # so that shapes take part in inference
        self.rooted = any(type(x) is Rooted for x in labels)  # so that the value may be absent here
        self.one_number = all(x is I for x in labels)  # so that it is a plain objective
        self.drawn = D in labels
        self._dual: Layout | None = None

    def __getitem__(self, axis: str) -> Label:
        return self.labels[self.grid.axis(axis)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.grid.names)

    def __len__(self) -> int:
        return len(self.labels)

    __hash__ = object.__hash__  # one object per content, and this one needs no Python

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping) and not isinstance(other, Layout):
            return dict(self) == dict(other)
        return self is other

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{n}: {x!r}" for n, x in zip(self.grid.names, self.labels, strict=True)) + "}"

    def __reduce__(self) -> Any:
        return self.grid.layout, (self.labels,)

    @property
    def dual(self) -> Layout:
        """The layout of the cotangent."""
        if self._dual is None:
            self._dual = self.grid.layout([dual_label(x) for x in self.labels])
        return self._dual

    def replace(self, axes: Sequence[str], label: Label) -> Layout:
        """This layout with another label on the axes named."""
        at = {self.grid.axis(axis) for axis in axes}
        return self.grid.layout([label if k in at else x for k, x in enumerate(self.labels)])

    def absent_beyond(self, axes: Sequence[str]) -> bool:
        """Whether an axis not named roots the value on another rank, so that a whole line of `axes` is without data."""
        return self.rooted and any(
            type(x) is Rooted and x.root != at and name not in axes
            for name, x, at in zip(self.grid.names, self.labels, self.grid.place, strict=True)
        )
