"""Microbatches: the losses of one block of `accumulate`, each divided by the number of its own rows.

The gradients of a block are added up, so the loss of each microbatch is divided by the number of rows of the whole
batch. If the backward at one line runs m times in a block, and each time its loss is divided by the number of rows of
that microbatch alone, the gradient is m times too large. The 1st, 2nd, 4th, 8th, ... block of a mesh is examined.
"""

from __future__ import annotations

from typing import Any

from autograd.engine.objective import place_in
from autograd.engine.tensor import Tensor
from autograd.errors import ScaleError, ScaleWarning, find_site

from ..checks import modes
from ..checks.reports import warn_once
from .walk import Walk

__all__ = ["Microbatches", "is_own_mean", "text_of"]


def is_own_mean(losses: Any, recording: Any, walk: Walk) -> bool:
    """Whether a loss of a microbatch is divided by the number of its own rows, and by nothing else."""
    return any(
        power.own_mean for y in losses if isinstance(y, Tensor) for power in walk.at(place_in(y, recording))
    )  # fmt: skip


def text_of(m: int, whose: str, each: str) -> str:
    """The text about a gradient that is m times too large."""
    return (
        f"the gradient {whose} is {m} times too large: {each} that is divided by the number of rows of its own "
        "microbatch, and the gradients of the microbatches are added\n"
        "  fix: divide the loss of each microbatch by the number of rows of the whole batch, all microbatches and all "
        "ranks together\n"
        f"  or:  divide it by {m} as well, if all microbatches have equally many rows"
    )


class Microbatches:
    """The microbatches of a block.

    Parameters
    ----------
    mesh : Mesh
    """

    def __init__(self, mesh: Any):
        self._mesh = mesh
        self._found: dict[tuple[str, int], list[bool]] = {}

    def note(self, outputs: Any, recording: Any) -> None:
        """Note a sweep from the losses of a microbatch."""
        walk = recording.scale or Walk(recording, self._mesh.grid)
        losses = outputs if isinstance(outputs, list | tuple) else (outputs,)
        self._found.setdefault(find_site(), []).append(is_own_mean(losses, recording, walk))

    def tell(self) -> None:
        """Tell, at the end of the block, what counts once for each microbatch."""
        for site, means in self._found.items():
            m = len(means)
            if m < 2 or not all(means) or modes.scale == "off":
                continue
            text = text_of(m, "of this block", f"this backward has run m = {m} times, each time from a loss")
            if modes.scale == "error":
                raise ScaleError(text)
            if ("microbatches", site) not in self._mesh.told:
                self._mesh.told.add(("microbatches", site))
                if not self._mesh.ranks.index:
                    warn_once(text, ScaleWarning, site)
