"""``scipy.linalg`` with some differentiable functions: ``import autograd.scipy.linalg``.

`sqrtm`, `solve_sylvester`, `solve_triangular` and `solve_banded` have derivatives. Every other function is SciPy's,
and raises `NotDifferentiable` where a tape records one of its arguments, unless `autograd.extend.defvjp` gives it a
rule. Sources: Giles, An extended collection of matrix derivative results, 2008; Higham, Functions of Matrices, 2008,
section 6.1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.leaves import constant
from ..engine.primitive import Primitive, op
from ..engine.tensor import TENSORS
from ..errors import typed_errors
from ..extend import replaceable
from ..ops import reshape, sum, transpose
from ..ops.decompositions import svdvals
from ..ops.elementwise import conj, real, where
from ..ops.indexing import taken
from ..ops.manipulation import tril, triu
from ._load import as_ufunc, others, scipy, traced

_linalg = scipy("linalg")


def _t(x: Any) -> Any:
    return transpose(x)


def _real_like(g: Any, x: Any) -> Any:
    return g if x.dtype.kind == "c" or g.dtype.kind != "c" else real(g)


# -- Sylvester equations, square roots -------------------------------------------------------------------------------


_sylvester: Primitive = op(
    "solve_sylvester", "N N c", as_ufunc(_linalg.solve_sylvester, lambda a, b, q: q.shape),
    (lambda ct, y, a, b, q: -(_sylvester(_t(a), _t(b), ct) @ _t(y)),
     lambda ct, y, a, b, q: -(_t(y) @ _sylvester(_t(a), _t(b), ct)),
     lambda ct, y, a, b, q: _sylvester(_t(a), _t(b), ct)),
    saves="y01", operands="a b q",
    tangent=(lambda da, y, a, b, q: _sylvester(a, b, -(da @ y)), lambda db, y, a, b, q: _sylvester(a, b, -(y @ db)),
             lambda dq, y, a, b, q: _sylvester(a, b, dq)),
)  # fmt: skip


@replaceable(_linalg.solve_sylvester)
@typed_errors
def solve_sylvester(a: Any, b: Any, q: Any) -> Any:
    """Return the x with ``a x + x b = q``. Adjoint: with ``g = solve_sylvester(a', b', ct)``: -g x', -x' g and g."""
    return _sylvester(*(x if hasattr(x, "shape") else np.asarray(x) for x in (a, b, q)))


def _slope(direction: Any, y: Any) -> Any:
    """The derivative of a root y in a direction: NaN where y is singular, for there it has none."""
    s = svdvals(y)
    is_singular = s[-1:] <= s[:1] * (16 * float(np.finfo(y.dtype).eps))
    return _sylvester(y, y, direction) * where(is_singular, np.nan, s[:1] * 0 + 1)


_sqrtm: Primitive = op(
    "sqrtm", "N", as_ufunc(_linalg.sqrtm, lambda x: x.shape),
    lambda ct, y, x: _real_like(_slope(ct, _t(y)), x), saves="y0", operands="x",
    tangent=(lambda dx, y, x: _slope(dx, y),),
)  # fmt: skip


@replaceable(_linalg.sqrtm)
@typed_errors
def sqrtm(A: Any, *args: Any, **options: Any) -> Any:
    """Return the principal square root of a matrix, complex where a real matrix has no real root.

    The gradient at a singular matrix, where the root has no derivative, is NaN.
    """
    return _sqrtm(A) if traced(A) else _linalg.sqrtm(A, *args, **options)


# -- triangular and banded systems -----------------------------------------------------------------------------------


_TRTRS = {letter: getattr(_linalg.lapack, f"{name}trtrs") for letter, name in zip("fdFD", "sdcz", strict=True)}


def _solve_triangular(a: Any, b: Any, transposed: bool, lower: bool, unit: bool) -> Any:
    solve = _TRTRS.get(a.dtype.char) if a.dtype == b.dtype and a.ndim == 2 and b.ndim in (1, 2) else None
    if solve is not None and b.size and a.shape[0] == a.shape[1] == b.shape[0]:
        # LAPACK's function itself, which has columns first; SciPy's takes four times as long where n is below 60
        if a.flags.f_contiguous:
            y, failed = solve(a, b, lower=lower, trans=transposed, unitdiag=unit)
        else:
            y, failed = solve(a.T, b, lower=not lower, trans=not transposed, unitdiag=unit)
        if not failed:
            return y
    return _linalg.solve_triangular(a, b, trans=int(transposed), lower=lower, unit_diagonal=unit, check_finite=False)


def _triangular_adjoint_of_a(ct: Any, y: Any, a: Any, b: Any, transposed: bool, lower: bool, unit: bool) -> Any:
    v, x = (_columns(z) for z in (_triangular(a, ct, options=(not transposed, lower, unit)), y))
    g = x @ _t(v) if transposed else v @ _t(x)
    shift = 1 if unit else 0
    return -(tril(g, -shift) if lower else triu(g, shift))


_triangular: Primitive = op(
    "solve_triangular", "N b", as_ufunc(_solve_triangular, lambda a, b, *_: b.shape),
    (_triangular_adjoint_of_a,
     lambda ct, y, a, b, transposed, lower, unit: _triangular(a, ct, options=(not transposed, lower, unit))),
    saves="y0", operands="a b",
)  # fmt: skip


@replaceable(_linalg.solve_triangular)
@typed_errors
def solve_triangular(
    a: Any, b: Any, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False, **options: Any
) -> Any:
    """Return the x with ``a x = b``, where `a` is the upper (or `lower`) triangle of a matrix.

    `trans` is 0 or "N" for `a` itself, 1 or "T" for its transpose, 2 or "C" for its conjugate transpose. On Tensors
    other options are ignored.
    """
    if not traced(a, b):
        return _linalg.solve_triangular(a, b, trans=trans, lower=lower, unit_diagonal=unit_diagonal, **options)
    if trans in (2, "C"):
        a = conj(a)
    transposed = trans not in (0, "N")
    a, b = (x if hasattr(x, "shape") else np.asarray(x) for x in (a, b))
    return _triangular(a, b, options=(transposed, bool(lower), bool(unit_diagonal)))


def _columns(x: Any) -> Any:
    return x if len(x.shape) > 1 else reshape(x, (-1, 1))


def _solve_banded(ab: Any, b: Any, below: int, above: int) -> Any:
    return _linalg.solve_banded((below, above), ab, b)


def _mask_outside(x: Any, i: Any, n: int) -> Any:
    """`x` with 0 where the index i is outside the matrix; the mask is a constant, which goes with any layout."""
    kept = ((i >= 0) & (i < n)).astype(x.dtype)
    return x * (constant(kept) if x.__class__ in TENSORS else kept)


def _transposed_bands(ab: Any, below: int, above: int) -> Any:
    """The bands of the transposed matrix: entry (r, j) is entry (below + above - r, r - below + j) of `ab`."""
    rows, n = below + above + 1, int(ab.shape[1])
    r, j = np.indices((rows, n))
    column = r - below + j
    return _mask_outside(taken(ab, (rows - 1 - r, np.clip(column, 0, n - 1))), column, n)


def _banded_adjoint_of_bands(ct: Any, y: Any, ab: Any, b: Any, below: int, above: int) -> Any:
    v, x = _columns(_banded_adjoint_of_b(ct, y, ab, b, below, above)), _columns(y)
    rows, n = below + above + 1, int(ab.shape[1])
    r, j = np.indices((rows, n))
    i = r - above + j
    return -_mask_outside(sum(taken(v, np.clip(i, 0, n - 1)) * reshape(x, (1, n, -1)), axis=-1), i, n)


def _banded_adjoint_of_b(ct: Any, y: Any, ab: Any, b: Any, below: int, above: int) -> Any:
    return _banded(_transposed_bands(ab, below, above), ct, options=(above, below))


_banded: Primitive = op(
    "solve_banded", "N b", as_ufunc(_solve_banded, lambda ab, b, *_: b.shape),
    (_banded_adjoint_of_bands, _banded_adjoint_of_b), saves="y0", operands="ab b"
)


@replaceable(_linalg.solve_banded)
@typed_errors
def solve_banded(l_and_u: Any, ab: Any, b: Any, **options: Any) -> Any:
    """Return the x with ``a x = b``, where the rows of `ab` are the bands of `a`.

    ``l_and_u = (below, above)`` are the numbers of bands below and above the diagonal. On Tensors other options are
    ignored.
    """
    if not traced(ab, b):
        return _linalg.solve_banded(l_and_u, ab, b, **options)
    below, above = (int(n) for n in l_and_u)
    ab, b = (x if hasattr(x, "shape") else np.asarray(x) for x in (ab, b))
    return _banded(ab, b, options=(below, above))


__getattr__ = others(_linalg)

__all__ = ["solve_banded", "solve_sylvester", "solve_triangular", "sqrtm"]
