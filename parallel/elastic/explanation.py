"""`explain`: the bytes and messages of a copy and of a restore after a death, counted without making one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autograd.engine.state import state
from autograd.errors import typed_errors

from ..checkpoint.boxes import elements
from ..checkpoint.explanation import after_first_step, number_of_stages
from ..checkpoint.ownership import Entry, share_of
from ..checkpoint.replicas import digest_of_text
from ..checkpoint.tree import encode, on_a_mesh
from .holdings import Holding, expected_here, is_compared, mesh_sizes, values_in, what_is_here

__all__ = ["ElasticCost", "explain"]

EXCHANGES, ALL_TO_ALLS = 10, 8
"""Of a restore from the first step that is looked at: how often all ranks exchange texts, and parts of lists."""
_DIGEST = "<f4(1024, 1024)0123456789abcdef"


@dataclass(frozen=True)
class ElasticCost:
    """The bytes that one rank of an elastic run sends and receives.

    Attributes
    ----------
    ranks : int
    copy_bytes : int
        Its share of the state and the names of its values, which it sends to its partner at a copy, in three messages.
    exchanges, all_to_alls : int
        Of a restore after a death: how often all ranks send each other a text, and parts of a list.
    heads, head_bytes : int
        The different trees with the shapes of values, and the bytes of one, compressed. Each rank receives each once.
    told_bytes : int
        Other texts that it receives from all ranks: digests, steps, sizes of lists.
    boxes_bytes : int
        The boxes of its values, which it sends to the directories of these, and about as much as it receives as a
        directory if the values are spread evenly.
    directory_bytes : int
        The boxes that a directory receives for one value, if all ranks have parts of it.
    state_bytes : int
        The state of this rank, which it receives if it has lost all of it.
    """

    ranks: int
    copy_bytes: int
    exchanges: int
    all_to_alls: int
    heads: int
    head_bytes: int
    told_bytes: int
    boxes_bytes: int
    directory_bytes: int
    state_bytes: int

    @property
    def rebuild_bytes(self) -> int:
        """The bytes that a rank receives in a restore besides state."""
        return self.heads * self.head_bytes + self.told_bytes + max(self.boxes_bytes, self.directory_bytes)

    def __str__(self) -> str:
        return (
            f"{self.ranks:,} ranks. A copy sends {self.copy_bytes:,} bytes in 3 messages. A restore after a death "
            f"takes {self.exchanges} exchanges and {self.all_to_alls} all-to-alls, in which a rank receives "
            f"{self.rebuild_bytes:,} bytes about the values ({self.heads} x {self.head_bytes:,} of trees and shapes, "
            f"{self.boxes_bytes:,} to {self.directory_bytes:,} of boxes), and at most {self.state_bytes:,} bytes of "
            "state."
        )


@typed_errors
def explain(objects: Any) -> ElasticCost:
    """The bytes and exchanges of `run` for the state of these objects, in copies and after a death.

    It sends nothing, so it also runs in a dry world. An optimizer that has not made a step is counted with the state
    that its first step makes.

    Parameters
    ----------
    objects : mapping of str to object, or an object
        As for `Run.restore`.

    Examples
    --------
    >>> import collectives as cc
    >>> from autograd import nn, optim
    >>> from parallel import DataParallel, elastic
    >>> with cc.dry(ranks=16384, mesh={"dp": 16384}):
    ...     model = DataParallel(nn.Linear(4096, 16384, bias=False), "dp", zero=1)
    ...     found = elastic.explain({"model": model, "optimizer": optim.AdamW(model.parameters())})
    >>> found.ranks, found.state_bytes, found.heads
    (16384, 196608, 1)
    >>> found.directory_bytes < 2_000_000
    True
    """
    with on_a_mesh(objects):
        named = objects if isinstance(objects, Mapping) else {"state": objects}
        found = encode(named, prepare=after_first_step)
        group = state.distribution.group()
        ranks, stages = int(group.size), number_of_stages()
        entries, share = what_is_here(found), share_of(found.pieces, ranks)
        values, expected = values_in(entries, found.arrays), expected_here(named)
        holding = Holding("replicas", 1, 0, found.tree, [], mesh_sizes(), int(group.index), expected, entries, values)
    head = len(holding.head())
    lines = [len(json.dumps({e.key: [[e.box, _DIGEST * is_compared(e)]]})) for e in entries]
    names = json.dumps([values, [[e.key, e.box] for e in share]])
    told = ranks * (2 * len(digest_of_text("")) + 8 * ALL_TO_ALLS // 2 + 200) if ranks > 1 else 0
    return ElasticCost(
        ranks, (_bytes_of(share) + len(names) + 16) * (ranks > 1), EXCHANGES, ALL_TO_ALLS, stages, head, told,
        sum(lines), max(lines, default=0) * ranks, _bytes_of(entries),
    )  # fmt: skip


def _bytes_of(entries: list[Entry]) -> int:
    return sum(entry.array.dtype.itemsize * elements(entry.box) for entry in entries)
