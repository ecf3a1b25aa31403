"""Linear algebra under SciPy's names: ``import autograd.scipy.linalg``.

`sqrtm`, `solve_sylvester`, `solve_triangular` and `solve_banded` have derivatives; every other name is SciPy's own,
which raises `NotDifferentiable` where a tape follows what it is given. Formulas: Giles, An extended collection of
matrix derivative results, 2008; Higham, Functions of Matrices, 2008, section 6.1.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..engine.parameter import constant
from ..engine.primitive import Primitive, op
from ..engine.tensor import TENSORS
from ..extend import primitive
from ..ops import reshape, sum, transpose
from ..ops.elementwise import conj, real
from ..ops.indexing import taken
from ..ops.manipulation import tril, triu
from ._load import as_ufunc, scipy, traced

_linalg = scipy("linalg")


def _t(x: Any) -> Any:
    return transpose(x)


def _real_like(g: Any, x: Any) -> Any:
    if x.dtype.kind == "c" or g.dtype.kind != "c":
        return g
    return real(g)


# -- Sylvester equations, square roots -------------------------------------------------------------------------------
def _in_a(ct: Any, y: Any, a: Any, b: Any, q: Any) -> Any:
    return -(_sylvester(_t(a), _t(b), ct) @ _t(y))


def _in_b(ct: Any, y: Any, a: Any, b: Any, q: Any) -> Any:
    return -(_t(y) @ _sylvester(_t(a), _t(b), ct))


_sylvester: Primitive = op(
    "solve_sylvester", "N N c", as_ufunc(_linalg.solve_sylvester, lambda a, b, q: q.shape),
    (_in_a, _in_b, lambda ct, y, a, b, q: _sylvester(_t(a), _t(b), ct)), saves="y01", operands="a b q",
    tangent=(lambda da, y, a, b, q: _sylvester(a, b, -(da @ y)), lambda db, y, a, b, q: _sylvester(a, b, -(y @ db)),
             lambda dq, y, a, b, q: _sylvester(a, b, dq)),
)  # fmt: skip


def solve_sylvester(a: Any, b: Any, q: Any) -> Any:
    """The x for which ``a x + x b = q``."""
    return _sylvester(*(x if hasattr(x, "shape") else np.asarray(x) for x in (a, b, q)))


_sqrtm: Primitive = op(
    "sqrtm", "N", as_ufunc(_linalg.sqrtm, lambda x: x.shape),
    lambda ct, y, x: _real_like(_sylvester(_t(y), _t(y), ct), x), saves="y0", operands="x",
    tangent=(lambda dx, y, x: _sylvester(y, y, dx),),
)  # fmt: skip


def sqrtm(A: Any, *args: Any, **options: Any) -> Any:
    """The principal square root of a matrix; complex where a real one has none."""
    return _sqrtm(A) if traced(A) else _linalg.sqrtm(A, *args, **options)


# -- triangular and banded systems -----------------------------------------------------------------------------------
def _solved_triangular(a: Any, b: Any, flipped: bool, lower: bool, unit: bool) -> Any:
    return _linalg.solve_triangular(a, b, trans=int(flipped), lower=lower, unit_diagonal=unit, check_finite=False)


def _triangular_in_a(ct: Any, y: Any, a: Any, b: Any, flipped: bool, lower: bool, unit: bool) -> Any:
    v, x = (_columns(z) for z in (_triangular(a, ct, options=(not flipped, lower, unit)), y))
    g = x @ _t(v) if flipped else v @ _t(x)
    shift = 1 if unit else 0
    return -(tril(g, -shift) if lower else triu(g, shift))


_triangular: Primitive = op(
    "solve_triangular", "N b", as_ufunc(_solved_triangular, lambda a, b, *_: b.shape),
    (_triangular_in_a,
     lambda ct, y, a, b, flipped, lower, unit: _triangular(a, ct, options=(not flipped, lower, unit))),
    saves="y0", operands="a b",
)  # fmt: skip


def solve_triangular(
    a: Any, b: Any, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False, **options: Any
) -> Any:
    """The x for which ``a x = b``, with a triangle of `a`; ``trans``: 0 or "N", 1 or "T" (its transpose), 2 or "C"."""
    if not traced(a, b):
        return _linalg.solve_triangular(a, b, trans=trans, lower=lower, unit_diagonal=unit_diagonal, **options)
    if trans in (2, "C"):
        a = conj(a)
    flipped = trans not in (0, "N")
    a, b = (x if hasattr(x, "shape") else np.asarray(x) for x in (a, b))
    return _triangular(a, b, options=(flipped, bool(lower), bool(unit_diagonal)))


def _columns(x: Any) -> Any:
    return x if len(x.shape) > 1 else reshape(x, (-1, 1))


def _solved_banded(ab: Any, b: Any, below: int, above: int) -> Any:
    return _linalg.solve_banded((below, above), ab, b)


def _inside(x: Any, i: Any, n: int) -> Any:
    """What of a band has an index i within the matrix; the rest is zero. A constant, so that any layout goes."""
    kept = ((i >= 0) & (i < n)).astype(x.dtype)
    return x * (constant(kept) if x.__class__ in TENSORS else kept)


def _flipped_band(ab: Any, below: int, above: int) -> Any:
    """The transposed matrix, in bands: entry (r, j) is that of (below + above - r, r - below + j)."""
    rows, n = below + above + 1, int(ab.shape[1])
    r, j = np.indices((rows, n))
    column = r - below + j
    return _inside(taken(ab, (rows - 1 - r, np.clip(column, 0, n - 1))), column, n)


def _banded_in_a(ct: Any, y: Any, ab: Any, b: Any, below: int, above: int) -> Any:
    v, x = _columns(_banded_in_b(ct, y, ab, b, below, above)), _columns(y)
    rows, n = below + above + 1, int(ab.shape[1])
    r, j = np.indices((rows, n))
    i = r - above + j
    return -_inside(sum(taken(v, np.clip(i, 0, n - 1)) * reshape(x, (1, n, -1)), axis=-1), i, n)


def _banded_in_b(ct: Any, y: Any, ab: Any, b: Any, below: int, above: int) -> Any:
    return _banded(_flipped_band(ab, below, above), ct, options=(above, below))


_banded: Primitive = op(
    "solve_banded", "N b", as_ufunc(_solved_banded, lambda ab, b, *_: b.shape),
    (_banded_in_a, _banded_in_b), saves="y0", operands="ab b"
)


def solve_banded(l_and_u: Any, ab: Any, b: Any, **options: Any) -> Any:
    """The x for which ``a x = b``, with the bands of `a` in the rows of `ab`, as many below and above as `l_and_u`."""
    if not traced(ab, b):
        return _linalg.solve_banded(l_and_u, ab, b, **options)
    below, above = (int(n) for n in l_and_u)
    ab, b = (x if hasattr(x, "shape") else np.asarray(x) for x in (ab, b))
    return _banded(ab, b, options=(below, above))


@cache
def __getattr__(name: str) -> Any:
    found = getattr(_linalg, name)
    return primitive(found) if callable(found) and not isinstance(found, type) else found


__all__ = ["solve_banded", "solve_sylvester", "solve_triangular", "sqrtm"]
