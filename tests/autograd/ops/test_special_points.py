"""Derivatives at points where a general formula divides by zero: right, or NaN, and never a finite wrong number."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import autograd.scipy.linalg
import autograd.scipy.special
from autograd import nn
from autograd.testing import check_grads

Array = Any
NAN = "NaN"
_rng = numpy.random.default_rng(31)
Q = numpy.linalg.qr(_rng.standard_normal((3, 3)))[0]
G = _rng.standard_normal((3, 3))
SYMMETRIC = G + G.T


def spectral(f: Callable[[Any], Any], weights: Array = G) -> Callable[[Any], Any]:
    """A function of a symmetric matrix by its eigenvalues and eigenvectors, paired with weights."""

    def of_matrix(a: Any) -> Any:
        w, v = np.linalg.eigh((a + np.swapaxes(a, -1, -2)) * 0.5)
        return np.sum((v * f(w)[..., None, :]) @ np.swapaxes(v, -1, -2) * weights)

    return of_matrix


def by_svd(f: Callable[[Any], Any], full: bool = False) -> Callable[[Any], Any]:
    def of_matrix(a: Any) -> Any:
        u, s, vh = np.linalg.svd(a, full_matrices=full)
        return np.sum((u * f(s)) @ vh * G[: a.shape[0], : a.shape[1]])

    return of_matrix


def real_part_of_eig(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda a: np.real(np.sum(f(np.linalg.eigvals(a))))


EQUAL = (Q * [1.0, 1.0, 2.0]) @ Q.T  # equal but for rounding
RANK_2 = numpy.arange(1.0, 10.0).reshape(3, 3)
JORDAN = numpy.array([[2.0, 1.0], [0.0, 2.0]])
THREE_OF_TWO = numpy.array([[0.0, 0, 1], [0, 0, 1], [0, 0, 0]])  # eigenvectors that span a plane only
TALL = numpy.array([[1.0, 2], [2, 4], [3, 6]])
# name -> function, point, gradient
MATRICES: dict[str, tuple[Any, Array, Any]] = {
    "exp by eigh at 0": (spectral(np.exp), numpy.zeros((3, 3)), NAN),
    "exp by eigh at equal values": (spectral(np.exp), EQUAL, NAN),
    "the matrix itself by eigh at 1": (spectral(lambda w: w), numpy.eye(3), NAN),
    "a constant by eigh at 1": (spectral(lambda w: w * 0 + 1), numpy.eye(3), NAN),
    "log by eigh at 1, where the cotangent of v is 0": (spectral(np.log), numpy.eye(3), NAN),
    "trace of the square by eigh at equal values": (spectral(np.square, numpy.eye(3)), EQUAL, 2 * EQUAL),
    "square by eigh at separate values": (spectral(np.square), RANK_2 + RANK_2.T, "differences"),
    "squares of eigvalsh": (lambda a: np.sum(np.linalg.eigvalsh(a + a.T) ** 2), EQUAL / 2, 4 * EQUAL),
    "squares of eigvalsh at 0": (lambda a: np.sum(np.linalg.eigvalsh(a + a.T) ** 2), numpy.zeros((3, 3)), 0 * G),
    "polar factor at 1": (by_svd(lambda s: s * 0 + 1), numpy.eye(3), NAN),
    "the matrix itself by svd at equal values": (by_svd(lambda s: s), EQUAL, NAN),
    "the matrix itself by svd at one 0": (by_svd(lambda s: s, True), RANK_2, G),
    "the matrix itself by svd at one 0, tall": (by_svd(lambda s: s), TALL, NAN),
    "the matrix itself by svd at one 0, wide": (by_svd(lambda s: s), TALL.T, NAN),
    "squares of svdvals at equal values": (lambda a: np.sum(np.linalg.svdvals(a) ** 2), EQUAL, 2 * EQUAL),
    "squares of svdvals at 0": (lambda a: np.sum(np.linalg.svdvals(a) ** 2), numpy.zeros((2, 3)), numpy.zeros((2, 3))),
    "squares of svdvals, tall": (lambda a: np.sum(np.linalg.svdvals(a) ** 2), TALL, 2 * TALL),
    "squares of eigvals": (real_part_of_eig(np.square), numpy.eye(3), 2 * numpy.eye(3)),
    "squares of eigvals without a basis": (real_part_of_eig(np.square), JORDAN, NAN),
    "squares of eigvals without a basis of three": (real_part_of_eig(np.square), THREE_OF_TWO, NAN),
    "eig of equal values": (lambda a: np.real(np.sum(np.linalg.eig(a)[1] * G)), numpy.eye(3), NAN),
    "r of dependent columns": (lambda a: np.sum(np.linalg.qr(a)[1]), TALL, NAN),
    "r of zeros": (lambda a: np.sum(np.linalg.qr(a)[1]), numpy.zeros((2, 2)), NAN),
    "pinv at equal values": (lambda a: np.sum(np.linalg.pinv(a) * G), EQUAL, "differences"),
    "a power of zeros": (lambda a: np.sum(np.linalg.matrix_power(a, 3) * G), numpy.zeros((3, 3)), 0 * G),
    "a power of dependent columns": (lambda a: np.sum(np.linalg.matrix_power(a, 2) * G), RANK_2, "differences"),
    "sqrtm of a singular matrix": (lambda a: np.sum(autograd.scipy.linalg.sqrtm(a)), numpy.diag([1.0, 1.0, 0.0]), NAN),
    "sqrtm at equal values": (lambda a: np.sum(autograd.scipy.linalg.sqrtm(a) * G), 4 * numpy.eye(3), G / 4),
    "spectral norm, shared": (lambda a: np.linalg.norm(a, 2), numpy.eye(3), numpy.eye(3) / 3),
    "xlogy at 0": (lambda a: np.sum(autograd.scipy.special.xlogy(a, 2.0)), numpy.zeros(2), numpy.full(2, numpy.log(2))),
    "xlog1py at 0": (lambda a: np.sum(autograd.scipy.special.xlog1py(a, 1.0)), numpy.zeros(2),
                     numpy.full(2, numpy.log(2))),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize("name", MATRICES)
def test_gradients_of_matrix_functions(name: str) -> None:
    """In both modes, and beside a matrix of the batch without a special point."""
    f, a, expected = MATRICES[name]
    g = ag.grad(f)(a)
    along = numpy.random.default_rng(0).standard_normal(a.shape)
    if isinstance(expected, str) and expected == NAN:
        assert numpy.isnan(g).any()
        assert numpy.all(numpy.isnan(g) | (g == 0))  # a triangle that is not read has 0
        assert numpy.isnan(ag.jvp(f, (a,), (along,))[1])
        return
    if isinstance(expected, str):
        check_grads(f, a, order=1)
        return
    numpy.testing.assert_allclose(g, expected, rtol=1e-6, atol=1e-7)
    tangent = ag.jvp(f, (a,), (along,))[1]
    assert tangent == pytest.approx(numpy.sum(g * along), rel=1e-9, abs=1e-9) or (
        "trace" in name and numpy.isnan(tangent)  # forward mode does not know the cotangents
    )


@pytest.mark.parametrize("name", ["eigh", "svd"])
def test_a_special_matrix_of_a_batch_leaves_the_others_alone(name: str) -> None:
    f = {"eigh": spectral(np.exp), "svd": lambda a: np.sum(np.prod(np.linalg.svd(a)[0] ** 2, -1))}[name]
    regular = RANK_2 + RANK_2.T + numpy.diag([0.0, 1.0, 5.0])
    both = ag.grad(f)(numpy.stack([numpy.eye(3), regular]))
    assert numpy.isnan(both[0]).all()
    numpy.testing.assert_allclose(both[1], ag.grad(f)(regular), rtol=1e-12)


# -- determinants ----------------------------------------------------------------------------------------------------
def leibniz(a: Any) -> Any:
    """The determinant as the sum over permutations, a polynomial."""
    n, total = a.shape[-1], 0.0
    for order in itertools.permutations(range(n)):
        term = numpy.linalg.det(numpy.eye(n)[list(order)])
        for i in range(n):
            term = term * a[..., i, order[i]]
        total = total + term
    return total


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_determinants_of_every_rank(n: int, dtype: Any) -> None:
    """Gradients and second derivatives in all modes, in batches that mix ranks 0 to n."""
    rng = numpy.random.default_rng(n)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype is complex else 0)

    a = numpy.stack([normal(n, r) @ normal(r, n) for r in range(n + 1)])
    along, weights = normal(*a.shape), normal(n + 1)

    def derivatives(det: Any) -> list[Array]:
        def f(a: Any) -> Any:
            return np.real(np.sum(det(a) * weights))

        gradient = ag.grad(f)
        found = [gradient(a), ag.jvp(f, (a,), (along,))[1], ag.jvp(gradient, (a,), (along,))[1]]
        if n > 1:
            found += [ag.grad(lambda a: np.real(np.sum(gradient(a) * along)))(a)]
            found += [ag.grad(lambda a: ag.jvp(f, (a,), (along,))[1])(a)]
        return found

    for found, expected in zip(derivatives(np.linalg.det), derivatives(leibniz), strict=True):
        numpy.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_the_second_derivative_of_a_nearly_singular_determinant() -> None:
    hessian = ag.hessian(np.linalg.det)(RANK_2)  # by the inverse, which has entries of 1e16, it would be noise
    numpy.testing.assert_allclose(hessian, ag.hessian(leibniz)(RANK_2), atol=1e-9)


# -- magnitudes at 0 -------------------------------------------------------------------------------------------------
ZEROS, ONES = numpy.zeros(3), numpy.ones(3)
CENTRED = 2 / 3 * (numpy.eye(3) - 1 / 3)
# name -> function, point, Hessian
MAGNITUDES: dict[str, tuple[Any, Array, Any]] = {
    "norm squared": (lambda x: np.linalg.norm(x) ** 2, ZEROS, 2 * numpy.eye(3)),
    "norm times norm": (lambda x: np.linalg.norm(x) * np.linalg.norm(x), ZEROS, 2 * numpy.eye(3)),
    "norm of rows": (lambda x: np.sum(np.linalg.norm(np.reshape(x, (3, 1)), axis=1) ** 2), ZEROS, 2 * numpy.eye(3)),
    "vector_norm": (lambda x: np.linalg.vector_norm(x) ** 2, ZEROS, 2 * numpy.eye(3)),
    "Frobenius": (lambda x: np.linalg.norm(np.reshape(x, (3, 1)), "fro") ** 2, ZEROS, 2 * numpy.eye(3)),
    "hypot": (lambda x: np.hypot(x[0], np.hypot(x[1], x[2])) ** 2, ZEROS, 2 * numpy.eye(3)),
    "absolute": (lambda x: np.sum(np.abs(x) ** 2), ZEROS, 2 * numpy.eye(3)),
    "fabs": (lambda x: np.sum(np.fabs(x) * np.fabs(x)), ZEROS, 2 * numpy.eye(3)),
    "absolute, complex": (lambda x: np.sum(np.abs(x * (1 + 2j)) ** 2), ZEROS, 10 * numpy.eye(3)),
    "cosh of absolute": (lambda x: np.sum(np.cosh(np.abs(x))), ZEROS, numpy.eye(3)),
    "softplus with absolute": (lambda x: np.sum(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))), ZEROS,
                               numpy.eye(3) / 4),
    "std": (lambda x: np.std(x) ** 2, ONES, CENTRED),
    "nanstd": (lambda x: np.nanstd(x) ** 2, ONES, CENTRED),
    "real part by size and angle": (lambda x: np.sum(np.abs(x + 0j) * np.cos(np.angle(x + 0j))) ** 2, ZEROS,
                                    2 * numpy.ones((3, 3))),
    "std of one element": (lambda x: np.sum(np.std(np.reshape(x, (3, 1)), axis=1)), ONES, numpy.zeros((3, 3))),
    "squares": (lambda x: np.sum(x * x), ZEROS, 2 * numpy.eye(3)),
    "var": (np.var, ONES, CENTRED),
    "smooth_l1_loss": (lambda x: nn.smooth_l1_loss(x, ZEROS, reduction="sum"), ZEROS, numpy.eye(3)),
}  # fmt: skip
RIGHT = ("squares", "var", "smooth_l1_loss", "std of one element")


@pytest.mark.parametrize("name", MAGNITUDES)
def test_second_derivatives_of_functions_of_magnitudes(name: str) -> None:
    """Each mode over each mode: the Hessian, or NaN where it cannot be known."""
    f, x, expected = MAGNITUDES[name]
    assert numpy.isfinite(ag.grad(f)(x)).all()
    rows = numpy.eye(3)
    with numpy.errstate(invalid="ignore"):
        found = {
            "reverse over reverse": ag.hessian(f)(x),
            "forward over reverse": [ag.jvp(ag.grad(f), (x,), (e,))[1] for e in rows],
            "reverse over forward": [ag.grad(lambda x, e=e: ag.jvp(f, (x,), (e,))[1])(x) for e in rows],
            "forward over forward": numpy.diag([_second(f, x, e) for e in rows]),
        }
    for mode, hessian in found.items():
        h, want = numpy.asarray(hessian), numpy.asarray(expected)
        if mode == "forward over forward":
            h, want = numpy.diag(h), numpy.diag(want)
        wrong = ~numpy.isnan(h) & ~numpy.isclose(h, want, atol=1e-12)
        assert not wrong.any(), (mode, h)
        assert name not in RIGHT or not numpy.isnan(h).any(), (mode, h)


def _second(f: Any, x: Array, e: Array) -> Any:
    return ag.jvp(lambda x: ag.jvp(f, (x,), (e,))[1], (x,), (e,))[1]


def test_sums_of_magnitudes_keep_the_second_derivative_zero() -> None:
    """The cotangent is constant: a penalty of weights that are 0, and rows of zeros that are masked."""
    x = numpy.array([0.0, 1.0, 0.0])
    assert ag.hessian(lambda x: np.sum(np.abs(x)))(x).tolist() == numpy.zeros((3, 3)).tolist()
    masked = ag.hessian(lambda x: np.sum(np.linalg.norm(np.reshape(x, (3, 1)), axis=1) * numpy.array([0.0, 1.0, 0.0])))
    assert masked(x).tolist() == numpy.zeros((3, 3)).tolist()
