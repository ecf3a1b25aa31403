"""Grid: what labels need to know of a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .errors import MeshError
from .layout import Label, Layout, Shard

__all__ = ["Grid"]


class Grid:
    """The names and sizes of a mesh's axes and this rank's place on each; what labels need to know of a mesh."""

    __slots__ = ("_layouts", "index", "names", "place", "sizes")
    _interned: dict[tuple[Any, ...], Grid] = {}

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    place: tuple[int, ...]
    index: dict[str, int]
    _layouts: dict[tuple[Any, ...], Layout]

    @classmethod
    def of(cls, names: Sequence[str], sizes: Sequence[int], place: Sequence[int]) -> Grid:
        """The one Grid of these names, sizes and place."""
        key = (tuple(names), tuple(sizes), tuple(place))
        grid = cls._interned.get(key)
        if grid is None:
            grid = cls()
            grid.names, grid.sizes, grid.place = key
            grid.index = {name: i for i, name in enumerate(grid.names)}
            grid._layouts = {}
            grid = cls._interned.setdefault(key, grid)
        return grid

    def layout(self, labels: Sequence[Label]) -> Layout:
        """The one Layout of these labels, in order of the axes."""
        key = tuple((x.dim, x.extent, x.offset, x.unit) if type(x) is Shard else x for x in labels)
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts.setdefault(key, Layout(self, tuple(labels)))
        return found

    def uniform(self, label: Label) -> Layout:
        """The layout with one label on every axis."""
        return self.layout([label] * len(self.names))

    def axis(self, name: str) -> int:
        """The axis' place in the mesh; MeshError if there is none of this name."""
        try:
            return self.index[name]
        except (KeyError, TypeError):
            raise MeshError(f"axis {name!r} was given; this mesh has {', '.join(map(repr, self.names))}") from None

    def __reduce__(self) -> Any:
        return Grid.of, (self.names, self.sizes, self.place)
