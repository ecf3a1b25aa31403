"""States of which each rank has its own, in one value that all ranks have: for checkpoints that any rank may write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autograd.engine.state import state
from autograd.errors import ArgumentError, MeshError
from autograd.nn.saving import packed, unpacked
from autograd.whole import are_pieces

__all__ = ["OfRank", "of_all_ranks", "of_this_rank", "sizes_of_mesh"]


class OfRank:
    """A state that each rank has for itself, in the place of the list of all of them. A checkpoint has each once."""

    def __init__(self, mine: Any):
        self.mine = mine


def sizes_of_mesh() -> dict[str, int]:
    """The axes of the current mesh and their sizes; empty without a mesh."""
    return {} if state.mesh is None else dict(zip(state.mesh.names, map(int, state.mesh.sizes), strict=True))


def of_all_ranks(mine: Any, caller: str, ranks: int = 1) -> dict[str, Any]:
    """Return the states of all ranks of the current mesh, each `mine`. All of them call it.

    Parameters
    ----------
    mine : object
        Numbers, texts, arrays, lists and dictionaries.
    caller : str
    ranks : int
        How many ranks have such a state, at least.

    Raises
    ------
    MeshError
        There are several, and no mesh is current.
    """
    mesh = state.mesh
    if are_pieces():
        return {"mesh": sizes_of_mesh(), "ranks": OfRank(mine)}
    if mesh is None or mesh.is_alone:
        if mesh is None and ranks > 1:
            raise MeshError(
                f"{caller}: each of {ranks} ranks has a part of the state, and no mesh is current\n"
                f"  fix: call it inside `with mesh:`, on all ranks"
            )
        return {"mesh": sizes_of_mesh(), "ranks": [mine]}
    mesh.ranks.agree(lambda: caller)
    return {"mesh": sizes_of_mesh(), "ranks": [unpacked(each) for each in mesh.ranks.exchange(packed(mine), of=caller)]}


def of_this_rank(known: Mapping[str, Any], caller: str) -> Any:
    """Return the state of this rank, of one that `of_all_ranks` made; None if it was made on another mesh.

    Raises
    ------
    ArgumentError
        It is no such state.
    """
    ranks, mesh = known.get("ranks"), known.get("mesh")
    if not isinstance(ranks, list) or not isinstance(mesh, dict):
        raise ArgumentError(f"{caller}: {sorted(known)} was given; needed: the state of a state_dict")
    if mesh != sizes_of_mesh():
        return None
    place = 0 if state.mesh is None else int(state.mesh.ranks.index)
    return ranks[place] if place < len(ranks) else None
