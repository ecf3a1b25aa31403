"""Microbatches: the losses of one block of `accumulate`, each divided by the number of its own rows.

The gradients of a block are added up, so the loss of each microbatch is divided by the number of rows of the whole
batch. If the backward at one line runs for m microbatches in a block, and each time its loss is divided by the number
of rows of that microbatch alone, the gradient is m times too large. Several losses of the same rows are one microbatch.
The 1st, 2nd, 4th, 8th, ... block of a mesh is examined.

=================================================  ===================================================================
the means of m microbatches                        told
=================================================  ===================================================================
of their own rows, by no other number              m times too large, unless the number may be that of all rows: there
                                                   are m elements in each row
of unequal numbers of rows, divided by m           a row counts more than another
others                                             nothing
=================================================  ===================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.arrays.device import to_host
from autograd.arrays.shape_only import Shaped
from autograd.engine.objective import place_in
from autograd.engine.recording import arrays_of, parents_of, signature_of
from autograd.engine.tensor import Tensor
from autograd.errors import GradientWarning, ScaleError, ScaleWarning, find_site
from autograd.layouts.layout import Shard, V

from ..checks import modes
from ..checks.reports import warn_once
from ..checks.sanitizer import digest_of
from .powers import OwnMean
from .walk import Walk

__all__ = ["Microbatch", "Microbatches", "own_mean_of", "text_of"]

Microbatch = tuple[OwnMean | None, int]
"""The mean of a sweep from the loss of a microbatch, and the digest of its rows; 0 for one that is not known."""


def own_mean_of(losses: Any, recording: Any, walk: Walk) -> OwnMean | None:
    """The mean of the rows of a microbatch that a loss of it is; None if it is none."""
    powers = [power for y in losses if isinstance(y, Tensor) for power in walk.at(place_in(y, recording))]
    return next((power.own_mean for power in powers if power.own_mean), None)


def digest_of_rows(recording: Any) -> int:
    """The digest of the first rows that a tape has kept, as those that meet the first weights."""
    for node in recording.nodes:
        layouts = getattr(signature_of(node), "layouts", None) or ()
        for x, place, layout in zip(arrays_of(node), parents_of(node), layouts, strict=False):
            labels = () if place >= 0 or layout is None else layout.labels
            is_data = any(label is V or type(label) is Shard for label in labels)
            if is_data and type(x) is not Shaped and np.ndim(x) and x.size:
                return digest_of(np.ascontiguousarray(to_host(x)))
    return 0


def text_of(found: Sequence[Microbatch], whose: str, how: str) -> tuple[Any, str] | None:
    """The class of the warning and the text about the microbatches of a block; None if they may be right.

    `how` has a place for their number m.
    """
    batches: dict[int, list[OwnMean | None]] = {}
    for i, (mean, rows) in enumerate(found):
        batches.setdefault(rows or -i, []).append(mean)
    if len(batches) < 2:
        return None
    how = how.format(m=len(batches))
    each = [_text_of(means, whose, how) for means in zip(*batches.values(), strict=False)]  # a loss of each microbatch
    return next((text for text in each if text is not None), None)


def _text_of(means: Sequence[OwnMean | None], whose: str, how: str) -> tuple[Any, str] | None:
    known = [mean for mean in means if mean is not None]
    m, counts, rests = len(means), {mean.number for mean in known}, {mean.rest for mean in known}
    if len(known) < m:
        return None
    if rests == {m} and len(counts) > 1:
        return GradientWarning, (
            f"the gradient {whose} is no mean over all rows: {how} that is divided by the number of rows of its own "
            f"microbatch, {', '.join(f'{mean.number:g}' for mean in known)}, and by their number. So a row of a small "
            f"microbatch counts more\n  fix: {_FIX}"
        )
    may_be_all = any(not mean.elements.isdisjoint((m, math.inf)) for mean in known)
    if rests != {1.0} or (may_be_all and len(counts) == 1):
        return None
    return ScaleWarning, (
        f"the gradient {whose} is {m} times too large: {how} that is divided by the number of rows of its own "
        f"microbatch, and the gradients of the microbatches are added\n  fix: {_FIX}\n"
        f"  or:  divide it by {m} as well, if all microbatches have equally many rows"
    )


_FIX = (
    "divide the loss of each microbatch by the number of rows of the whole batch, all microbatches and all ranks "
    "together"
)


class Microbatches:
    """The microbatches of a block.

    Parameters
    ----------
    mesh : Mesh
    """

    def __init__(self, mesh: Any):
        self._mesh = mesh
        self._found: dict[tuple[str, int], list[Microbatch]] = {}

    def note(self, outputs: Any, recording: Any) -> None:
        """Note a sweep from the losses of a microbatch."""
        walk = recording.scale or Walk(recording, self._mesh.grid)
        losses = outputs if isinstance(outputs, list | tuple) else (outputs,)
        mean = own_mean_of(losses, recording, walk)
        self._found.setdefault(find_site(), []).append((mean, digest_of_rows(recording) if mean else 0))

    def tell(self) -> None:
        """Tell, at the end of the block, what counts once for each microbatch."""
        for site, found in self._found.items():
            how = "this backward has run m = {m} times, each time from a loss"
            told = None if modes.scale == "off" else text_of(found, "of this block", how)
            if told is None:
                continue
            kind, text = told
            if modes.scale == "error" and kind is ScaleWarning:
                raise ScaleError(text)
            if ("microbatches", site) not in self._mesh.told:
                self._mesh.told.add(("microbatches", site))
                if not self._mesh.ranks.index:
                    warn_once(text, kind, site)
