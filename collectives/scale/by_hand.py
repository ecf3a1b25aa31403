"""Gradients that the program divides by the number of ranks after backward, as an averaging hook does.

After an examined sweep the norm of each gradient is kept. If all gradients of an optimizer are exactly 1/n, or n times,
what they were when it makes its step, for the size n of an axis or of the mesh, the program has scaled them. It is a
warning where ranks have gradients of their own, as one rank may have scaled them alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any
from weakref import ref

import numpy as np

from autograd.arrays.device import to_host
from autograd.arrays.shape_only import Shaped
from autograd.errors import ScaleError, ScaleWarning, find_site
from autograd.layouts.layout import I, R

from ..checks import modes
from ..checks.reports import warn_once

__all__ = ["norms_of", "tell_scaled"]

_EXACT = {2: 1e-2, 4: 1e-5}  # by the bytes of a real number; for others 1e-10


def norms_of(leaves: Iterable[Any]) -> dict[int, tuple[Any, float]]:
    """The norms of the gradients of leaves, by the id of the leaf, each with a weak reference to it."""
    found = {}
    for leaf in leaves:
        norm = _norm(leaf)
        if norm:
            found[id(leaf)] = ref(leaf), norm
    return found


def _norm(leaf: Any) -> float:
    g = getattr(leaf._grad, "array", leaf._grad)
    if g is None or type(g) is Shaped or type(leaf.array) is Shaped:
        return 0.0
    flat = np.asarray(to_host(g), complex if g.dtype.kind == "c" else float).reshape(-1)
    square = float(np.vdot(flat, flat).real)
    return math.sqrt(square) if math.isfinite(square) else 0.0


def tell_scaled(optimizer: Any, norms: dict[int, tuple[Any, float]], mesh: Any) -> None:
    """Tell if the gradients of an optimizer were multiplied or divided by a number of ranks since the last sweep."""
    ratios = []
    exact, is_same = 1e-10, True
    for p in optimizer.parameters:
        known = norms.get(id(p))
        if known is None or known[0]() is not p:
            continue
        ratios.append(_norm(p) / known[1])
        is_same = is_same and all(label is R or label is I for label in p.layout.labels)
        dtype = p.array.dtype
        exact = max(exact, _EXACT.get(dtype.itemsize // (2 if dtype.kind == "c" else 1), 0.0))
    if not ratios or modes.scale == "off":
        return
    sizes = {int(n): f"axis {name!r}" for n, name in zip(mesh.sizes, mesh.names, strict=True) if n > 1}
    sizes.setdefault(math.prod(map(int, mesh.sizes)), "the mesh")
    for n, of in sizes.items():
        for factor, verb in ((1 / n, "divided"), (float(n), "multiplied")):
            if all(abs(ratio - factor) <= exact * factor for ratio in ratios):
                _tell(
                    f"{type(optimizer).__name__}.step(): the gradients were {verb} by {n} since backward, which is the "
                    f"number of ranks of {of}. A gradient is the sum over the ranks of the gradient of one loss, which "
                    f"carries all normalisation; so now it is {n} times too {'small' if factor < 1 else 'large'}\n"
                    f"  fix: leave it out, if the loss is divided by the number of rows of all ranks\n"
                    f"  or:  the factor in the loss, before backward, if it is meant",
                    find_site(), mesh, is_same,
                )  # fmt: skip
                return


def _tell(text: str, site: tuple[str, int], mesh: Any, is_same: bool) -> None:
    """Raise an error only if all ranks have the same gradients, which are compared: each rank may scale its own."""
    if modes.scale == "error" and is_same:
        raise ScaleError(text)
    if ("by hand", site) not in mesh.told:
        mesh.told.add(("by hand", site))
        if not mesh.ranks.index:
            warn_once(text, ScaleWarning, site)
