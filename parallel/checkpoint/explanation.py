"""`explain`: the files, bytes and messages of a save, without a save, for any number of ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autograd.engine.state import state
from autograd.errors import typed_errors

from .boxes import elements
from .ownership import share_of
from .saving import told_bytes
from .tree import encode, on_a_mesh

__all__ = ["Explanation", "after_first_step", "explain", "number_of_stages"]


@dataclass(frozen=True)
class Explanation:
    """The cost of a save, as one rank sees it.

    Attributes
    ----------
    ranks : int
    files : int
        Data files, one for each rank, and the manifest.
    values : int
        The arrays of which this rank has a part.
    held_bytes : int
        The bytes of this rank's parts.
    written_bytes : int
        The bytes that it writes.
    manifest_bytes : int
        The bytes that the manifest has of the parts of all ranks, if all write as many as this one.
    exchanges : int
        How often all ranks send each other a text.
    exchanged_bytes : int
        The bytes of the texts that a rank receives.
    """

    ranks: int
    files: int
    values: int
    held_bytes: int
    written_bytes: int
    manifest_bytes: int
    exchanges: int
    exchanged_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.ranks:,} ranks write {self.files:,} files. This one has parts of {self.values:,} values, "
            f"{self.held_bytes:,} bytes, and writes {self.written_bytes:,} bytes. The manifest has "
            f"{self.manifest_bytes:,} bytes on the parts of all ranks. It takes part in {self.exchanges} "
            f"exchanges, in which it receives {self.exchanged_bytes:,} bytes."
        )


@typed_errors
def explain(objects: Any) -> Explanation:
    """The cost of `save` of these objects. It sends and writes nothing, so it also runs in a dry world.

    An optimizer that has not made a step is counted with the state that its first step makes. So is a rank's share of
    arrays without layouts, of which the first rank writes the whole. What other objects make later, as the residuals of
    a compression, is not counted before.

    Examples
    --------
    >>> import collectives as cc
    >>> from autograd import nn, optim
    >>> from parallel import DataParallel, checkpoint
    >>> with cc.dry(ranks=4096, mesh={"dp": 4096}):
    ...     model = DataParallel(nn.Linear(4096, 1024, bias=False), "dp", zero=3)
    ...     found = checkpoint.explain({"model": model})
    >>> print(found.files, found.written_bytes)
    4097 4096
    >>> layer = nn.Linear(100, 10, bias=False)
    >>> checkpoint.explain({"model": layer, "optimizer": optim.AdamW(layer.parameters())}).written_bytes
    12000
    """
    with on_a_mesh(objects):
        named = objects if isinstance(objects, Mapping) else {"state": objects}
        found = encode(named, prepare=after_first_step)
        group = state.distribution.group()
        ranks = int(group.size)
        entries = share_of(found.pieces, ranks)
        stages = number_of_stages()
    held = sum(piece.array.dtype.itemsize * int(piece.array.size) for piece, _ in found.pieces.values())
    written = sum(entry.array.dtype.itemsize * elements(entry.box) for entry in entries)
    of_all = sum(array.dtype.itemsize * int(array.size) for array in found.arrays.values())
    held, written = held + of_all, written + of_all * (int(group.index) == 0)
    pieces = sum(len(json.dumps([ranks, held, held, entry.box, "0123456789abcdef"])) for entry in entries)
    trees = len(json.dumps(found.tree))
    exchanges = 0 if ranks == 1 else 3 + (stages > 1)
    # the ranks with which this one shares values, of which all of them have copies
    copies = {at.name for _, at in found.pieces.values() if at.holds and at.replicas > 1}
    texts = told_bytes(len(copies)) * ranks + (trees * stages if stages > 1 else 0)
    return Explanation(
        ranks, ranks + 1, len(found.pieces) + len(found.arrays), held, written, pieces * ranks, exchanges,
        0 if ranks == 1 else texts,
    )  # fmt: skip


def number_of_stages() -> int:
    """The number of stages of the current mesh, whose ranks have different trees of a state."""
    axes, grid = state.distribution.stage_axes, state.grid
    sizes = {} if grid is None else dict(zip(grid.names, grid.sizes, strict=True))
    return math.prod(sizes[axis] for axis in axes)


def after_first_step(x: Any) -> Any:
    """The object with the state that its first step will make, or itself if it has made one."""
    made = getattr(x, "after_first_step", None)
    return x if made is None else made()
