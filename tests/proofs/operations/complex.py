"""Cases with complex arguments, for the tests of `autograd.numpy`.

Functions need not be holomorphic: derivatives are defined by finite differences along the real and the imaginary axis,
because the pairing of values and cotangents is bilinear.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy
from numpy.random import Generator

import autograd.numpy as np

from .base import Array, Case

COMPLEX: list[Case] = []


def around(*shape: int, at: complex = 0.0, size: float = 0.5) -> Any:
    """Return an argument with complex values around `at`, away from branch cuts if `at` is."""
    return lambda rng: at + size * (rng.standard_normal(shape) + 1j * rng.standard_normal(shape))


def _case(label: str, f: Any, *args: Any) -> None:
    COMPLEX.append(Case("complex", label, partial(f, np), partial(f, numpy), args))


for _name in ("exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "sqrt", "sin", "cos", "tan", "arcsin", "arccos",
              "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "square", "reciprocal", "negative",
              "conj", "real", "imag", "angle", "absolute", "sinc", "nan_to_num"):  # fmt: skip
    if _name not in ("exp2", "sinc"):  # NumPy's exp2 refuses complex numbers, and its sinc divides by almost zero
        _case(_name, lambda np, x, n=_name: getattr(np, n)(x), around(2, 2, at=1.5 + 1.2j, size=0.2))
_ONE: dict[str, Any] = {
    "sign": lambda np, x: np.sign(x), "size times value": lambda np, x: np.abs(x) * x, "power": lambda np, x: x**2.5,
    "real_if_close": lambda np, x: np.real_if_close(x), "cast": lambda np, x: np.real(x) * (1 + 2j) + x,
    "prod": lambda np, x: np.prod(x, 0), "cumprod": lambda np, x: np.cumprod(x),
    "cumsum": lambda np, x: np.cumsum(x, 1),
    "var": lambda np, x: np.var(x, 0), "std": lambda np, x: np.std(x), "mean": lambda np, x: np.mean(x, 1),
    "trace": lambda np, x: np.trace(x), "clip of sizes": lambda np, x: np.clip(np.abs(x), 0.1, 9.0) * x,
    "kron": lambda np, x: np.kron(x, x), "where": lambda np, x: np.where(np.real(x) > 1.5, x, np.conj(x)),
    "array of lists": lambda np, x: np.array([[x[0, 0], 2j], [1.0, x[1, 1]]]),
    "methods": lambda np, x: x.real * x.imag + x.conj() * x.T, "stack": lambda np, x: np.stack([x, np.real(x)]),
    "pad": lambda np, x: np.pad(x, 1), "diff": lambda np, x: np.diff(x), "roll": lambda np, x: np.roll(x, 1, 0),
    "norm": lambda np, x: np.linalg.norm(x), "norm 1": lambda np, x: np.linalg.norm(x, 1, axis=0),
    "norm 3": lambda np, x: np.linalg.norm(x, 3, axis=1), "nuclear norm": lambda np, x: np.linalg.norm(x, "nuc"),
    "fft": lambda np, x: np.fft.fft(x, 3, norm="ortho"), "ifftn": lambda np, x: np.fft.ifftn(x),
    "irfft": lambda np, x: np.fft.irfft(x), "irfft odd": lambda np, x: np.fft.irfft(x, 3),
    "irfftn": lambda np, x: np.fft.irfftn(x), "rfft of sizes": lambda np, x: np.fft.rfft(np.abs(x)),
    "hfft": lambda np, x: np.fft.hfft(x), "ihfft": lambda np, x: np.fft.ihfft(np.real(x)),
}  # fmt: skip
for _label, _f in _ONE.items():
    _case(_label, _f, around(2, 2, at=1.5 + 1.2j, size=0.3))
_TWO: dict[str, Any] = {
    "multiply": lambda np, a, b: a * b, "divide": lambda np, a, b: a / b, "matmul": lambda np, a, b: a @ b,
    "power of both": lambda np, a, b: a**b, "vdot": lambda np, a, b: np.vdot(a, b),
    "dot": lambda np, a, b: np.dot(a, b),
    "outer": lambda np, a, b: np.outer(a, b), "einsum": lambda np, a, b: np.einsum("ij,kj->ik", a, np.conj(b)),
    "tensordot": lambda np, a, b: np.tensordot(a, b, 2), "vecdot": lambda np, a, b: np.vecdot(a, b),
}  # fmt: skip
for _label, _f in _TWO.items():
    _case(_label, _f, around(2, 2, at=1.5 + 1.2j, size=0.2), around(2, 2, at=1.0 - 0.5j, size=0.2))
_case("real and complex", lambda np, a, b: a * b + np.real(b), lambda rng: rng.standard_normal((2, 2)), around(2, 2))


# -- matrices --------------------------------------------------------------------------------------------------------
def _regular(rng: Generator) -> Array:
    return 0.3 * (rng.standard_normal((3, 3)) + 1j * rng.standard_normal((3, 3))) + numpy.diag([1.0, 3.0, 5.5])


def _hermitian(np: Any, x: Any) -> Any:
    return (x + np.conj(np.swapaxes(x, -1, -2))) * 0.5


def _eigh(np: Any, x: Any) -> Any:
    w, v = np.linalg.eigh(_hermitian(np, x))
    return (v[:, :2] * w[:2] ** 2) @ np.conj(v[:, :2]).T


def _eig(np: Any, x: Any) -> Any:
    w, u = np.linalg.eig(x)
    return np.einsum("ij,j,kj->ik", u, w**2, np.conj(u))


def _svd(np: Any, x: Any) -> Any:
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    return (u[:, :1] * s[:1] ** 2) @ vh[:1]


def _vectors(np: Any, x: Any) -> Any:
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    return np.real(u * np.conj(u[:1])) @ np.real(np.conj(vh) * vh[:, :1])


def _qr(np: Any, x: Any) -> Any:
    q, r = np.linalg.qr(x)
    return np.concatenate([np.ravel(np.abs(q) ** 2 + 0j), np.ravel(np.conj(r[:, -1:]) * r)])


for _label, _f in {
    "inv": lambda np, x: np.linalg.inv(x), "det": lambda np, x: np.linalg.det(x),
    "slogdet": lambda np, x: np.linalg.slogdet(x)[0] * np.linalg.slogdet(x)[1],
    "solve": lambda np, x: np.linalg.solve(x, x * x), "pinv": lambda np, x: np.linalg.pinv(x[:, :2]),
    "cholesky": lambda np, x: np.linalg.cholesky(_hermitian(np, x)), "eigh": _eigh,
    "eigvalsh": lambda np, x: np.linalg.eigvalsh(x), "eigvalsh of the upper": lambda np, x: np.linalg.eigvalsh(x, "U"),
    "eig": _eig, "eigvals": lambda np, x: np.linalg.eigvals(x), "svd": _svd, "svd vectors": _vectors,
    "svd tall": lambda np, x: _svd(np, x[:, :2]), "svd wide": lambda np, x: _svd(np, x[:2]),
    "svdvals": lambda np, x: np.linalg.svd(x, compute_uv=False), "qr": _qr, "qr tall": lambda np, x: _qr(np, x[:, :2]),
}.items():  # fmt: skip
    _case(_label, _f, _regular)
