"""`check_adjoint`: the dot-product test."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.device import to_host
from ..transforms import jvp
from .probing import Function, arguments, norm, pairing, pulled, random_like, raw, value
from .report import GradientMismatch, listed

__all__ = ["check_adjoint"]


def check_adjoint(f: Function, *args: Any, rtol: float | None = None, seed: int = 0) -> None:
    """The dot-product test: reverse mode is the adjoint of forward mode, ``<ct, J dx> = <J* ct, dx>``.

    Parameters
    ----------
    f : callable
        Of as many arrays as are given; returns one array.
    *args : array_like
        Floating or complex, of any shapes.
    rtol : float, optional
        Relative to the norms of what is multiplied; by default for the dtype: 1e-10 in float64.
    seed : int
        Of the random cotangent and tangents.

    Raises
    ------
    GradientMismatch
        The two products, and those of each argument alone, which tell the argument that is wrong.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> from autograd.testing import check_adjoint
    >>> check_adjoint(lambda a, b: np.tanh(a @ b), np.ones((2, 3)), np.ones((3, 2)))
    """
    xs = arguments(args, "check_adjoint")
    rng = np.random.default_rng(seed)
    y = value(f, xs)
    ct = random_like(y, rng)
    dxs = [random_like(x, rng) for x in xs]
    precision = max((float(np.finfo(x.dtype).eps) for x in xs), default=2.2e-16)
    rtol = (1e-4 if precision > 1e-10 else 1e-10) if rtol is None else rtol
    gs = pulled(f, xs, ct)
    bad = []
    for i, (g, dx) in enumerate(zip(gs, dxs, strict=True)):
        alone = [d if j == i else np.zeros_like(d) for j, d in enumerate(dxs)]
        dy = to_host(raw(jvp(f, tuple(xs), tuple(alone))[1]))
        left, right = pairing(ct, dy), pairing(g, dx)
        scale = norm(ct) * norm(dy) + norm(g) * norm(dx)
        # terms that cancel, as in x / x, leave rounding of the size of what cancelled
        floor = 64 * precision * norm(ct) * norm(y) * norm(dx) / max(1.0, norm(xs[i]))
        floor += 4 * precision * norm(ct) * norm(dx)  # ... or of the cotangent's, as in log_softmax of one element
        if not abs(left - right) <= rtol * scale + floor:
            bad.append(f"  argument {i} of shape {dx.shape}: <ct, J dx> = {left!r}, <J* ct, dx> = {right!r}" +
                       _columns(f, xs, i, ct, g, rtol))  # fmt: skip
    if bad:
        raise GradientMismatch("\n".join([f"reverse mode is not the adjoint of forward mode (rtol={rtol:g})", *bad]))


_MOST = 200  # elements of an argument whose columns are looked at, once it is known to be wrong


def _columns(f: Function, xs: list[np.ndarray], i: int, ct: np.ndarray, got: np.ndarray, rtol: float) -> str:
    """The elements of an argument in which the two modes differ: what forward mode gives for each, one by one."""
    expected = got.copy()
    still = [np.zeros_like(x) for x in xs]
    for at in list(np.ndindex(*got.shape))[:_MOST]:
        for unit in (1, 1j) if got.dtype.kind == "c" else (1,):
            moved = list(still)
            moved[i] = still[i].copy()
            moved[i][at] = unit
            product = pairing(ct, to_host(raw(jvp(f, tuple(xs), tuple(moved))[1])))
            expected[at] = product if unit == 1 else expected[at] - 1j * product
    off = np.abs(expected - got)
    return listed(off > rtol * np.max(np.abs(expected) + np.abs(got)), off, expected, got, 0.0)
