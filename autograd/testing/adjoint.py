"""`check_adjoint`: the dot-product test."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.leaves import Leaf
from ..engine.primitive import Primitive
from ..engine.state import outside_mesh
from ..engine.tape import Tape
from ..errors import typed_errors
from .coordinates import Function, OnAllRanks, from_any_rank, plain_arrays_named
from .declaration import check_users_declarations
from .locating import locate
from .probing import norm, pairing, random_like
from .report import GradientMismatch, worst_elements

__all__ = ["check_adjoint"]


@typed_errors
def check_adjoint(f: Function, *args: Any, rtol: float | None = None, seed: int = 0) -> None:
    """Check that reverse mode is the adjoint of forward mode: ``<ct, J dx> = <J* ct, dx>`` (dot-product test).

    The test uses a random cotangent and a random tangent, and is made for each argument separately.

    An operation of yours without a forward rule has its tangent from its adjoint, so that both products would have the
    same fault. Its adjoint is compared with a finite difference along one direction, where the function is smooth.
    `check_grads` compares every element.

    Parameters
    ----------
    f : callable
        Takes the arrays that are given and returns one array.
    *args : array_like
        Floating or complex, of any shapes. Under a mesh, Tensors of any labels; a plain array is Varying.
    rtol : float, optional
        Tolerance relative to the norms of the factors, ``|ct| |J dx| + |J* ct| |dx|``. By default 1e-10 in double
        precision, 1e-4 in single precision.
    seed : int
        Seed of the random cotangent and tangents.

    Raises
    ------
    GradientMismatch
        The products differ. The message names the arguments, both products, and the elements that differ most. Or the
        adjoint of an operation of yours is not that of its function.
    DeclarationMismatch
        An operation of yours that the function calls does not have a property that its declaration states; see
        `check_declaration`.
    DtypeError
        An argument, or the result, is not floating or complex.
    ReplicaMismatch
        Under a mesh: the copies of an argument that is R or I differ between ranks.

    Notes
    -----
    Under a mesh all its ranks call it together, and `f` takes and returns values with labels. The products are those of
    the pairing: the sum over the ranks of local dot products, counted once along axes on which the value is Invariant.
    The cotangent and the tangents are random, and differ between ranks unless they are copies.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> from autograd.testing import check_adjoint
    >>> check_adjoint(lambda a, b: np.tanh(a @ b), np.ones((2, 3)), np.ones((3, 2)))
    """
    tested, xs = OnAllRanks.at(f, args, "check_adjoint")
    with plain_arrays_named(args, "check_adjoint"):
        calls = check_users_declarations(f, tested.spread(xs), seed)
        if fault := from_any_rank(next(filter(None, (_wrong_adjoint(*call, seed) for call in calls)), "")):
            raise GradientMismatch(fault)
        try:
            _check(tested, xs, rtol, seed)
        except GradientMismatch as error:
            locate(error, tested, xs, lambda g, zs: _check(g, zs, rtol, seed))
            raise


def _check(tested: OnAllRanks, xs: list[np.ndarray], rtol: float | None, seed: int) -> None:
    """Make the dot-product test."""
    rng = np.random.default_rng(seed)
    y = tested.value(xs)
    ct = random_like(y, rng)
    dxs = [random_like(x, rng) for x in xs]
    precision = max((float(np.finfo(x.dtype).eps) for x in xs), default=2.2e-16)
    rtol = (1e-4 if precision > 1e-10 else 1e-10) if rtol is None else rtol
    gs = tested.gradients(xs, ct)
    bad = []
    for i, (g, dx) in enumerate(zip(gs, dxs, strict=True)):
        alone = [d if j == i else np.zeros_like(d) for j, d in enumerate(dxs)]
        dy = tested.tangent(xs, alone, f"forward mode: the tangent of the result along argument {i}")
        left, right = pairing(ct, dy), pairing(g, dx)
        scale = norm(ct) * norm(dy) + norm(g) * norm(dx)
        # where terms cancel, the rounding error is relative to these terms: to the result's, as in x / x, ...
        floor = 64 * precision * norm(ct) * norm(y) * norm(dx) / max(1.0, norm(xs[i]))
        floor += 4 * precision * norm(ct) * norm(dx)  # ... or to the cotangent's, as in log_softmax of one element
        if not abs(left - right) <= rtol * scale + floor:
            shown = f"argument {i} of shape {dx.shape}{tested.arguments[i].title}"
            bad.append(f"  {shown}: <ct, J dx> = {left!r}, <J* ct, dx> = {right!r}" +
                       _differing_elements(tested, xs, i, ct, g, rtol))  # fmt: skip
    if bad:
        raise GradientMismatch("\n".join([f"reverse mode is not the adjoint of forward mode (rtol={rtol:g})", *bad]))


def _wrong_adjoint(operation: Primitive, arrays: list[Any], options: tuple[Any, ...], seed: int) -> str:
    """The fault of adjoints from which forward mode takes the tangents; "" if there is none.

    The ranks' operands are differentiated without a mesh: the rules of an operation do not communicate.
    """
    arrays = [np.asarray(x, np.result_type(x.dtype, np.float64)) if x.dtype.kind in "fc" else x for x in arrays]
    for i, x in enumerate(arrays):
        has_own = i < len(operation.tangent) and operation.tangent[i] is not None
        if operation.letters(len(arrays))[i] != "N" or has_own or x.dtype.kind not in "fc" or not x.size:
            continue
        rng = np.random.default_rng(seed)

        def value(z: np.ndarray, i: int = i) -> np.ndarray:
            return np.asarray(operation.function(*arrays[:i], z, *arrays[i + 1 :], *options))

        dx = np.maximum(1.0, np.abs(x)) * random_like(x, rng)
        step = 1e-5 * dx
        with np.errstate(all="ignore"):
            y, above, below = value(x), value(x + step), value(x - step)
            if y.dtype.kind not in "fc":
                continue
            dy, bend = (above - below) / 2e-5, (above + below - 2 * y) / 1e-5
            smooth = np.isfinite(dy) & (np.abs(bend) <= 1e-3 * np.abs(dy) + 1e-7 * np.abs(y))
            dy = np.where(smooth, dy, 0)
        ct = np.where(smooth, random_like(y, rng), 0)
        with outside_mesh(), Tape() as tape:
            leaf = Leaf(x, requires_grad=True)
            out = operation(*arrays[:i], leaf, *arrays[i + 1 :], options=options)
            tape.backward(out, ct)
        found = np.zeros_like(x) if leaf.grad is None else leaf.grad.numpy()
        left, right = pairing(ct, dy), pairing(found, dx)
        if not abs(left - right) <= 1e-4 * (norm(ct) * norm(dy) + norm(found) * norm(dx)):
            return (
                f"{operation.name}: the adjoint of operand {i} of shape {x.shape} is not that of the function: "
                f"<ct, dy> = {left:.9g} by finite differences, <J* ct, dx> = {right:.9g}. It has no rule for forward "
                "mode, so its tangent is computed from the adjoint, and both modes agree\n  fix: the adjoint, at "
                f"{operation.declared.file}:{operation.declared.line}; check_grads shows the elements that are wrong\n"
                "  or:  a forward rule, tangent=, if a derivative of another function is meant, as for straight-through"
            )
    return ""


_MAX_ELEMENTS = 200
"""Number of elements of a wrong argument that are compared one by one for the message."""


def _differing_elements(
    tested: OnAllRanks, xs: list[np.ndarray], i: int, ct: np.ndarray, got: np.ndarray, rtol: float
) -> str:
    """List the elements of argument i whose gradient `got` differs from forward mode along that element alone."""
    expected = got.copy()
    zeros = [np.zeros_like(x) for x in xs]
    for at in list(np.ndindex(*got.shape))[:_MAX_ELEMENTS]:
        for unit in (1, 1j) if got.dtype.kind == "c" else (1,):
            dxs = list(zeros)
            dxs[i] = zeros[i].copy()
            dxs[i][at] = unit
            product = pairing(ct, tested.tangent(xs, dxs))
            expected[at] = product if unit == 1 else expected[at] - 1j * product
    difference = np.abs(expected - got)
    wrong = difference > rtol * np.max(np.abs(expected) + np.abs(got))
    return worst_elements(wrong, difference, expected, got, 0.0)
