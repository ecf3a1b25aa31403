"""Cases of `autograd.numpy`'s products, of linear algebra and of matrix decompositions."""

from __future__ import annotations

from typing import Any

import numpy

import autograd.numpy as np
from autograd.engine.primitive import registry
from autograd.ops.norms import cofactors

from .base import Array, case, normal, numpy_case, positive, strided

# -- products --------------------------------------------------------------------------------------------------------
_PRODUCTS: list[tuple[str, Any, tuple[int, ...], tuple[int, ...]]] = [
    ("cov of two", lambda np, a, b: np.cov(a, b), (2, 4), (4,)),
    ("corrcoef of two", lambda np, a, b: np.corrcoef(a, b), (5,), (5,)),
    ("dot of many dimensions", lambda np, a, b: np.dot(a, b), (2, 3, 2), (2, 2, 3)),
    ("dot with a number", lambda np, a, b: np.dot(a, b), (), (2, 3)),
    ("dot of a vector and many", lambda np, a, b: np.dot(a, b), (2,), (3, 2, 2)),
    ("inner", lambda np, a, b: np.inner(a, b), (2, 3), (4, 3)),
    ("inner of vectors", lambda np, a, b: np.inner(a, b), (3,), (3,)),
    ("vdot", lambda np, a, b: np.vdot(a, b), (2, 3), (2, 3)),
    ("vecdot", lambda np, a, b: np.vecdot(a, b), (2, 3), (3,)),
    ("outer", lambda np, a, b: np.outer(a, b), (2,), (3,)),
    ("outer of matrices", lambda np, a, b: np.outer(a, b), (2, 2), (3,)),
    ("tensordot", lambda np, a, b: np.tensordot(a, b), (2, 3, 2), (3, 2, 2)),
    ("tensordot over none", lambda np, a, b: np.tensordot(a, b, 0), (2,), (3,)),
    ("tensordot over axes", lambda np, a, b: np.tensordot(a, b, ((0, -1), (1, 0))), (2, 3, 4), (4, 2, 2)),
    ("kron", lambda np, a, b: np.kron(a, b), (2, 2), (1, 3)),
    ("kron of a row", lambda np, a, b: np.kron(a, b), (2, 2), (3,)),
    ("cross", lambda np, a, b: np.cross(a, b), (2, 3), (3,)),
    ("cross along", lambda np, a, b: np.cross(a, b, axis=0), (3, 2), (3, 2)),
]
for _text, _shapes in {
    "ij,jk->ik": ((2, 3), (3, 2)), "ij,jk": ((2, 3), (3, 2)), "ij,ij->": ((2, 3), (2, 3)), "i,j->ij": ((2,), (3,)),
    "bij,bjk->bik": ((2, 2, 3), (2, 3, 2)), "ijk,jil->kl": ((2, 3, 2), (3, 2, 2)), "ij,ij->ij": ((2, 3), (2, 3)),
    "bhqd,bhkd->bhqk": ((1, 2, 2, 3), (1, 2, 3, 3)), "ab,cd->bd": ((2, 2), (2, 3)),
    "...ij,...jk->...ik": ((2, 3), (4, 3, 2)), "ij,j...->i...": ((2, 3), (3, 2, 2)), "ii,i->i": ((3, 3), (3,)),
    "ij,ik->": ((2, 3), (2, 2)), "i,->i": ((3,), ()),
}.items():  # fmt: skip
    _PRODUCTS.append((f"einsum {_text}", lambda np, a, b, t=_text: np.einsum(t, a, b), *_shapes))
_PRODUCTS.append(("einsum by lists", lambda np, a, b: np.einsum(a, [0, 1], b, [1, 2], [2, 0]), (2, 3), (3, 2)))
for _label, _f, _a, _b in _PRODUCTS:
    numpy_case("matmul", _label, _f, normal(*_a), normal(*_b))
for _text, _shape in {"ii->": (3, 3), "ii->i": (3, 3), "ijk->ki": (2, 3, 2), "ij->": (2, 3), "...j->j...": (2, 2, 3),
                      "iij->j": (2, 2, 3)}.items():  # fmt: skip
    case("transpose", f"einsum {_text}", lambda a, t=_text: np.einsum(t, a), lambda a, t=_text: numpy.einsum(t, a),
         normal(*_shape))  # fmt: skip
for _text in ("ij,jk,kl->il", "i,ij,j->", "ij,ik,il->jkl"):
    _sizes = [tuple(2 + "ijkl".index(x) % 2 for x in t) for t in _text.split("->")[0].split(",")]
    case("matmul", f"einsum {_text}", lambda a, b, c, t=_text: np.einsum(t, a, b, c),
         lambda a, b, c, t=_text: numpy.einsum(t, a, b, c), *(normal(*s) for s in _sizes))  # fmt: skip
case("matmul", "multi_dot", lambda a, b, c: np.linalg.multi_dot([a, b, c]),
     lambda a, b, c: numpy.linalg.multi_dot([a, b, c]), normal(2, 3), normal(3, 2), normal(2, 2))  # fmt: skip


for _mode in ("full", "same", "valid"):
    numpy_case("convolve", _mode, lambda np, a, v, m=_mode: np.convolve(a, v, m), normal(5), normal(3))
    numpy_case("convolve", f"{_mode}, the second longer", lambda np, a, v, m=_mode: np.convolve(a, v, m), normal(2),
               normal(4))  # fmt: skip
    numpy_case("convolve", f"correlate, {_mode}", lambda np, a, v, m=_mode: np.correlate(a, v, m), normal(4), normal(2))
    numpy_case("convolve", f"correlate, {_mode}, the second longer", lambda np, a, v, m=_mode: np.correlate(a, v, m),
               normal(3), normal(4))  # fmt: skip
numpy_case("matmul", "cov", lambda np, x: np.cov(x), normal(3, 5))
numpy_case("matmul", "cov of columns", lambda np, x: np.cov(x, rowvar=False, bias=True), normal(4, 2))
numpy_case("matmul", "cov of one", lambda np, x: np.cov(x, ddof=0), normal(4))
_COUNTS = numpy.array([1, 2, 1, 3])
numpy_case("matmul", "cov, weighted", lambda np, x, w: np.cov(x, fweights=_COUNTS, aweights=w), normal(2, 4),
           positive(4))  # fmt: skip
numpy_case("matmul", "corrcoef", lambda np, x: np.corrcoef(x), normal(3, 5))
numpy_case("multiply", "polyval", lambda np, p, x: np.polyval(p, x), normal(4), normal(2, 3))
numpy_case("multiply", "polyval of coefficients in a list", lambda np, x: np.polyval([2.0, 0.5, -1.0], x), normal(3))


# -- matrices --------------------------------------------------------------------------------------------------------
def regular(*shape: int) -> Any:
    """Return an argument with well-conditioned square matrices."""
    return lambda rng: rng.standard_normal(shape) * 0.4 + 2 * numpy.eye(shape[-1])


def singular(*shape: int) -> Any:
    """Return an argument with square matrices whose rank is one less than full."""
    *batch, n, _ = shape
    return lambda rng: rng.standard_normal((*batch, n, n - 1)) @ rng.standard_normal((*batch, n - 1, n))


def separated(*shape: int) -> Any:
    """Return an argument with matrices whose eigenvalues are positive and well separated."""
    return lambda rng: rng.standard_normal(shape) * 0.2 + numpy.diag(1.0 + 2 * numpy.arange(shape[-1]))


def symmetric(np: Any, x: Any) -> Any:
    """Return the symmetric part of matrices, for complex ones the Hermitian part."""
    return (x + np.conj(np.swapaxes(x, -1, -2))) * 0.5


def _minors(x: Array) -> Array:
    """The cofactors as signed determinants without one row and one column."""
    n = x.shape[-1]
    found = [
        (-1) ** (i + j) * numpy.linalg.det(numpy.delete(numpy.delete(x, i, -2), j, -1))
        for i in range(n) for j in range(n)
    ]  # fmt: skip
    return numpy.stack(found, -1).reshape(x.shape)


case("undetermined", "nowhere", lambda m: registry["undetermined"](m, m != m), lambda m: m * 0, normal(2, 3, 3))
case("cofactors", "of singular matrices", cofactors, _minors, singular(2, 3, 3))
case("cofactors", "of a regular matrix", cofactors, _minors, regular(3, 3))


def _lower_case(name: str, values: Any) -> None:
    """A case of the operation that the adjoint of a Cholesky root uses, of the lower half of a matrix."""
    case("inverse_of_lower", name, lambda x: registry["inverse_of_lower"](np.tril(x)),
         lambda x: numpy.linalg.inv(numpy.tril(x)), values)  # fmt: skip


_lower_case("small", regular(2, 3, 3))
_lower_case("by halves", regular(21, 21))
_ONE: list[tuple[str, str, Any, Any]] = [
    ("inv", "one", lambda np, x: np.linalg.inv(x), regular(3, 3)),
    ("inv", "several", lambda np, x: np.linalg.inv(x), regular(2, 2, 2)),
    ("inv", "strided", lambda np, x: np.linalg.inv(x), strided(regular(2, 2))),
    ("inv", "a negative power", lambda np, x: np.linalg.matrix_power(x, -2), regular(2, 2)),
    ("matmul", "a power", lambda np, x: np.linalg.matrix_power(x, 5), regular(2, 2)),
    ("inv", "tensorinv", lambda np, x: np.linalg.tensorinv(x.reshape(2, 2, 4)), regular(4, 4)),
    ("det", "one", lambda np, x: np.linalg.det(x), regular(3, 3)),
    ("det", "several", lambda np, x: np.linalg.det(x), regular(2, 2, 2)),
    ("det", "of singular ones", lambda np, x: np.linalg.det(x), singular(2, 3, 3)),
    ("slogdet", "one", lambda np, x: np.linalg.slogdet(x)[1], regular(3, 3)),
    ("slogdet", "several, with the sign", lambda np, x: np.linalg.slogdet(x)[1] * np.linalg.slogdet(x)[0],
     regular(2, 2, 2)),
    ("pinv", "tall", lambda np, x: np.linalg.pinv(x), normal(3, 2)),
    ("pinv", "wide, several", lambda np, x: np.linalg.pinv(x), normal(2, 2, 3)),
    *(("norm", f"{n}", lambda np, x, a=a: np.linalg.norm(x, *a), positive(3))
      for n, a in (("of a vector", ()), ("2", (2,)))),
    ("norm", "of all", lambda np, x: np.linalg.norm(x), normal(2, 3)),
    ("norm", "along", lambda np, x: np.linalg.norm(x, axis=1, keepdims=True), normal(2, 3)),
    ("norm", "Frobenius", lambda np, x: np.linalg.norm(x, "fro", axis=(0, 2)), normal(2, 3, 2)),
    ("norm", "vector_norm", lambda np, x: np.linalg.vector_norm(x), normal(2, 3)),
    *(("power" if p in (3, 1.5) else "absolute", f"norm {p}", lambda np, x, p=p: np.linalg.norm(x, p, axis=1),
       positive(2, 3)) for p in (1, 3, 1.5, numpy.inf, -numpy.inf)),
    *(("absolute", f"matrix norm {p}", lambda np, x, p=p: np.linalg.norm(x, p), normal(2, 3))
      for p in (1, -1, numpy.inf, -numpy.inf)),
    *(("svd", f"matrix norm {p}", lambda np, x, p=p: np.linalg.norm(x, p), normal(2, 3)) for p in ("nuc", 2, -2)),
    ("svd", "nuclear norm along", lambda np, x: np.linalg.norm(x, "nuc", axis=(2, 0)), normal(2, 2, 3)),
    ("svd", "cond", lambda np, x: np.linalg.cond(x), regular(2, 2)),
    ("svd", "values", lambda np, x: np.linalg.svd(x, compute_uv=False), normal(3, 2)),
    ("eigh", "values", lambda np, x: np.linalg.eigvalsh(symmetric(np, x)), separated(3, 3)),
    ("eigh", "one triangle", lambda np, x: np.linalg.eigh(x)[0], separated(3, 3)),
    ("eigh", "the upper triangle", lambda np, x: np.linalg.eigh(x, "U")[0], separated(3, 3)),
    ("cholesky", "one", lambda np, x: np.linalg.cholesky(symmetric(np, x)), separated(3, 3)),
    ("cholesky", "several", lambda np, x: np.linalg.cholesky(symmetric(np, x)), separated(2, 2, 2)),
]
for _operation, _label, _f, _argument in _ONE:
    numpy_case(_operation, _label, _f, _argument)
for _a, _b in (((2, 2), (2,)), ((2, 2), (2, 3)), ((2, 2, 2), (2, 1)), ((2, 2), (3, 2, 1))):
    case("solve", f"{_a} {_b}", lambda a, b: np.linalg.solve(a, b), numpy.linalg.solve, regular(*_a), normal(*_b))
case("solve", "tensorsolve", lambda a, b: np.linalg.tensorsolve(a.reshape(2, 2, 4), b),
     lambda a, b: numpy.linalg.tensorsolve(a.reshape(2, 2, 4), b), regular(4, 4), normal(2, 2))  # fmt: skip


# Eigenvectors and singular vectors are determined up to a sign, complex ones up to a phase. The functions below do not
# depend on it.
def _recombine(factors: Any, k: int = 2) -> Any:
    """Multiply the first k columns and rows of the factors of a decomposition."""
    u, s, vh = factors
    return (u[..., :k] * s[..., None, :k] ** 2) @ vh[..., :k, :]


def eigh_of(np: Any, x: Array) -> Any:
    w, v = np.linalg.eigh(symmetric(np, x))
    return _recombine((v, w, np.conj(np.swapaxes(v, -1, -2))))


def svd_of(np: Any, x: Array) -> Any:
    return _recombine(np.linalg.svd(x, full_matrices=False), 1)


def eig_of(np: Any, x: Array) -> Any:
    w, u = np.linalg.eig(x)
    if x.dtype.kind != "c":
        w, u = np.real(w), np.real(u)
    return np.einsum("ij,j,kj->ik", u, w**2, np.conj(u))


def qr_of(np: Any, x: Array) -> Any:
    q, r = np.linalg.qr(x)
    return np.concatenate([np.ravel(q * np.conj(q)), np.ravel(np.conj(r[:, :1]) * r)])


for _shape in ((3, 3), (2, 2, 2)):
    numpy_case("eigh", f"vectors {_shape}", eigh_of, separated(*_shape))
for _shape in ((3, 2), (2, 3), (2, 2, 2)):
    numpy_case("svd", f"vectors {_shape}", svd_of, normal(*_shape))
numpy_case("eig", "vectors and values", eig_of, separated(3, 3))
for _shape in ((3, 3), (4, 2), (2, 3)):
    numpy_case("qr", f"{_shape}", qr_of, normal(*_shape))
