"""SciPy's functions: what the cases of the registry do not hold. Values against SciPy's, derivatives in both modes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd.test_util import check_grads

pytest.importorskip("scipy")

import scipy.integrate
import scipy.linalg
import scipy.signal
import scipy.special
import scipy.stats

from autograd.scipy import integrate, linalg, misc, signal, special, stats

RNG = numpy.random.default_rng(5)
BOTH = ("rev", "fwd")


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1), -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_logsumexp(axis: Any, keepdims: bool) -> None:
    a, b = RNG.standard_normal((2, 3)), RNG.random((2, 3))
    words = {"axis": axis, "keepdims": keepdims}
    for weights in (None, b):
        with ag.Tape():
            found = special.logsumexp(ag.tensor(a), b=weights, **words)
        numpy.testing.assert_allclose(found.array, scipy.special.logsumexp(a, b=weights, **words), rtol=1e-14)
    check_grads(lambda a: special.logsumexp(a, **words), modes=BOTH)(a)
    check_grads(lambda a, b: special.logsumexp(a, b=b, **words), (0, 1), modes=BOTH)(a, b)


def test_logsumexp_at_infinity_and_with_signs() -> None:
    a = numpy.array([-numpy.inf, 0.0, 1.0])
    numpy.testing.assert_allclose(ag.grad(special.logsumexp)(a), [0.0, *scipy.special.softmax(a[1:])], rtol=1e-14)
    for nothing in (numpy.full(2, -numpy.inf), numpy.array([1.0, numpy.inf])):
        with numpy.errstate(divide="ignore"):
            assert float(special.logsumexp(ag.tensor(nothing))) == scipy.special.logsumexp(nothing)
    b = numpy.array([1.0, -3.0, 0.0])
    x = ag.tensor(numpy.array([1000.0, 999.5, 5000.0]))
    found, signs = special.logsumexp(x, b=b, return_sign=True)
    expected, expected_signs = scipy.special.logsumexp(x.array, b=b, return_sign=True)
    assert float(found) == pytest.approx(expected) and float(signs) == expected_signs
    assert misc.logsumexp is special.logsumexp


def test_multigammaln_softmax() -> None:
    a = RNG.random((2, 2)) + 4
    for d in (1, 3):
        with ag.Tape():
            found = special.multigammaln(ag.tensor(a), d).array
        numpy.testing.assert_allclose(found, special.multigammaln(a, d), rtol=1e-13)
        check_grads(lambda a, d=d: special.multigammaln(a, d), modes=BOTH)(a)
    for axis in (None, 0):
        numpy.testing.assert_allclose(special.softmax(a, axis), scipy.special.softmax(a, axis), rtol=1e-14)
        numpy.testing.assert_allclose(special.log_softmax(a, axis), scipy.special.log_softmax(a, axis), rtol=1e-14)


def test_arguments_without_derivative_are_refused() -> None:
    for f in (special.polygamma, special.jn, special.gammainc, stats.poisson.pmf, lambda a, x: stats.gamma.cdf(x, a)):
        with pytest.raises(ag.NotDifferentiable, match=r"has no derivative with respect to argument \d"):
            ag.grad(lambda n, f=f: f(n, 1.5))(2.0)
    found = ag.grad(lambda x: special.jn(ag.tensor(2.0), x))(1.5)
    assert float(found) == pytest.approx(scipy.special.jvp(2, 1.5), rel=1e-12)
    with pytest.raises(TypeError, match="norm.pdf takes x, loc, scale"):
        stats.norm.pdf(1.0, mean=2.0)
    with pytest.raises(TypeError, match="t.pdf needs df too"):
        stats.t.pdf(1.0)


def test_xlogy_at_zero() -> None:
    assert ag.grad(lambda b: special.xlogy(0.0, b))(0.5) == 0.0
    assert numpy.isfinite(ag.grad(lambda a: special.xlogy(a, 0.5))(0.0))


# -- distributions of vectors ----------------------------------------------------------------------------------------
def covariance(d: int) -> Any:
    root = RNG.standard_normal((d, d))
    return root @ root.T + numpy.eye(d)


@pytest.mark.parametrize("rows", [(), (4,)])
def test_multivariate_normal(rows: tuple[int, ...]) -> None:
    x, mean, cov = RNG.standard_normal((*rows, 3)), RNG.standard_normal(3), covariance(3)
    ours, theirs = stats.multivariate_normal, scipy.stats.multivariate_normal
    for name in ("pdf", "logpdf"):
        expected = getattr(theirs, name)(x, mean, cov)
        for args in ((ag.tensor(x), mean, cov), (x, ag.tensor(mean), cov), (x, mean, ag.tensor(cov))):
            numpy.testing.assert_allclose(getattr(ours, name)(*args).array, expected, rtol=1e-12)
        density = getattr(ours, name)
        f = lambda x, mean, half, f=density: f(x, mean, half + np.transpose(half))  # SciPy reads one triangle
        check_grads(f, (0, 1, 2), modes=BOTH)(x, mean, cov / 2)
    numpy.testing.assert_allclose(ours.entropy(mean, ag.tensor(cov)).array, theirs.entropy(mean, cov), rtol=1e-13)
    check_grads(lambda root: ours.entropy(mean, root + np.transpose(root)), modes=BOTH)(cov / 2)


def test_the_gradient_of_a_covariance_is_that_of_symmetric_changes() -> None:
    logpdf = stats.multivariate_normal.logpdf
    x, cov = numpy.array([0.3, -0.2]), numpy.array([[1.5, 0.4], [0.4, 1.2]])
    gradient = ag.grad(lambda c: logpdf(x, None, c))(cov)
    difference = lambda d: (logpdf(x, None, cov + 1e-6 * d) - logpdf(x, None, cov - 1e-6 * d)) / 2e-6
    change = numpy.array([[0.1, 0.7], [0.7, 0.3]])
    numpy.testing.assert_allclose(gradient, gradient.T)
    numpy.testing.assert_allclose(numpy.sum(gradient * change), difference(change), rtol=1e-6)
    below = numpy.array([[0.0, 0.0], [1.0, 0.0]])  # SciPy reads the lower triangle
    numpy.testing.assert_allclose([difference(below), difference(below.T)], [2 * gradient[1, 0], 0], rtol=1e-6)


def test_multivariate_normal_of_other_covariances() -> None:
    ours, theirs = stats.multivariate_normal, scipy.stats.multivariate_normal
    x, diagonal = RNG.standard_normal(3), RNG.random(3) + 1
    mean = numpy.zeros(3)
    numpy.testing.assert_allclose(ours.logpdf(ag.tensor(x), None, diagonal).array, theirs.logpdf(x, mean, diagonal))
    numpy.testing.assert_allclose(ours.logpdf(ag.tensor(x)[0], 1.0, 2.0).array, theirs.logpdf(x[0], 1.0, 2.0))
    singular = numpy.diag([1.0, 2.0, 0.0])
    x[2] = 0
    found = ours.logpdf(ag.tensor(x), numpy.zeros(3), singular, allow_singular=True)
    numpy.testing.assert_allclose(found.array, theirs.logpdf(x, numpy.zeros(3), singular, allow_singular=True))
    with pytest.raises(ag.NotDifferentiable, match="allow_singular=True has no derivative"):
        ag.grad(lambda c: ours.logpdf(x, numpy.zeros(3), c, allow_singular=True))(singular)


def test_dirichlet() -> None:
    alpha, x = RNG.random(3) + 1, RNG.dirichlet(numpy.ones(3), 4).T
    theirs = scipy.stats.dirichlet
    for points in (x, x[:, 0], x[:2]):
        numpy.testing.assert_allclose(stats.dirichlet.pdf(points, ag.tensor(alpha)).array, theirs.pdf(points, alpha))
        check_grads(lambda a, p=points: stats.dirichlet.logpdf(p, a), modes=BOTH)(alpha)
    check_grads(lambda x: stats.dirichlet.pdf(x / np.sum(x, axis=0), alpha), modes=BOTH)(x)
    check_grads(lambda x: stats.dirichlet.logpdf(x, alpha), modes=BOTH)(x[:2])


# -- convolution -----------------------------------------------------------------------------------------------------
def test_convolve_with_kept_and_summed_dimensions() -> None:
    a, b = RNG.standard_normal((2, 5, 4, 3)), RNG.standard_normal((2, 4, 2, 3, 2))
    words: dict[str, Any] = {"axes": ([1, 2], [2, 4]), "dot_axes": ([0, 3], [0, 3])}
    for mode in ("full", "valid", "same"):
        found = signal.convolve(a, b, mode=mode, **words)
        for k in range(4):
            expected = sum(
                scipy.signal.convolve(a[i, :, :, j], b[i, k, :, j, :], mode) for i in range(2) for j in range(3)
            )
            numpy.testing.assert_allclose(found[k], expected, rtol=1e-12, atol=1e-12)
    check_grads(lambda a, b: signal.convolve(a, b, mode="same", **words), (0, 1), modes=BOTH)(a, b)
    dotted = signal.convolve(a, b, axes=([], []), dot_axes=([0], [0]))
    numpy.testing.assert_allclose(dotted, numpy.tensordot(a, b, ([0], [0])), rtol=1e-12)


def test_convolve_refuses() -> None:
    a, b = numpy.ones((3, 5)), numpy.ones((5, 3))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"mode": "wrap"}, "mode='wrap'"), ({"mode": "valid"}, "one array at least as large as the other"),
        ({"axes": ([0], [])}, "as many dimensions"), ({"axes": ([0, 0], [0, 1])}, "each once"),
    ]  # fmt: skip
    for words, text in refused:
        with pytest.raises(ag.ShapeError, match=text):
            signal.convolve(a, b, **words)


# -- linear algebra --------------------------------------------------------------------------------------------------
def test_square_roots_of_indefinite_matrices_are_complex() -> None:
    a = RNG.standard_normal((3, 3))
    a = a + a.T
    assert numpy.iscomplexobj(linalg.sqrtm(a))
    check_grads(linalg.sqrtm, modes=BOTH)(a)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", ">f8"])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 0)], ids=str)
def test_triangular_systems_have_the_bits_of_scipy(shape: tuple[int, ...], dtype: str) -> None:
    rng = numpy.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(dtype) for s in ((5, 5), shape))
    for x in (a, numpy.asfortranarray(a), a[::-1, ::-1]):
        for trans, lower, unit in itertools.product((0, 1), (False, True), (False, True)):
            words = {"trans": trans, "lower": lower, "unit_diagonal": unit}
            found = linalg.solve_triangular(ag.tensor(x), ag.tensor(b), **words).numpy()
            assert found.tobytes() == scipy.linalg.solve_triangular(x, b, **words).tobytes()


def test_triangular_systems_that_scipy_refuses() -> None:
    singular = numpy.diag([1.0, 0.0, 1.0])
    for a, b in ((singular, numpy.ones(3)), (numpy.eye(3), numpy.ones(4)), (numpy.ones((3, 2)), numpy.ones(3))):
        with pytest.raises((ValueError, numpy.linalg.LinAlgError)):
            linalg.solve_triangular(ag.tensor(a), ag.tensor(b))


def test_triangular_systems_of_complex_numbers() -> None:
    a, b = RNG.standard_normal((3, 3)) + 1j * RNG.standard_normal((3, 3)) + 3 * numpy.eye(3), RNG.standard_normal(3)
    for trans in (0, "T", "C"):
        with ag.Tape():
            found = linalg.solve_triangular(ag.tensor(a), b, trans=trans, lower=True).array
        numpy.testing.assert_allclose(found, scipy.linalg.solve_triangular(a, b, trans=trans, lower=True), rtol=1e-12)
        check_grads(lambda a, t=trans: linalg.solve_triangular(a, b, trans=t, lower=True), modes=BOTH)(a)


def test_other_names_are_scipys() -> None:
    a = covariance(3)
    numpy.testing.assert_allclose(linalg.expm(a), scipy.linalg.expm(a))
    with pytest.raises(ag.NotDifferentiable, match="expm is to be differentiated"):
        ag.grad(lambda a: np.sum(linalg.expm(a)))(a)
    with pytest.raises(AttributeError):
        _ = linalg.no_such_name


# -- differential equations ------------------------------------------------------------------------------------------
def test_odeint_of_a_linear_equation() -> None:
    def right_side(y: Any, t: Any, a: Any) -> Any:
        return np.dot(a["matrix"], y) + a["rate"] * t

    y0, t = numpy.array([1.0, -0.5]), numpy.array([0.0, 0.3, 0.7])
    a = {"matrix": numpy.array([[0.0, 1.0], [-1.0, -0.2]]), "rate": 0.5}
    words = {"rtol": 1e-10, "atol": 1e-10}
    solve = lambda y0, t, a: integrate.odeint(right_side, y0, t, (a,), **words)
    expected = scipy.integrate.odeint(lambda y, t: a["matrix"] @ y + a["rate"] * t, y0, t, **words)
    numpy.testing.assert_allclose(solve(y0, t, a), expected, rtol=1e-7)
    check_grads(solve, (0, 1, 2), modes=["rev"], order=1)(y0, t, a)
    check_grads(solve, (0, 2), modes=["fwd"], order=1)(y0, t, a)


def test_a_closure_of_an_equation_is_refused_with_the_argument() -> None:
    from autograd.scipy.integrate import odeint

    times = numpy.array([0.0, 0.5, 1.0])
    for func in (lambda k: lambda y, t: -k * y, lambda k: lambda y, t: [-k * y[0]]):
        with pytest.raises(ag.NotDifferentiable, match=r"odeint: func uses[\s\S]*fix: odeint\(func, y0, t, \(k,\)\)"):
            ag.grad(lambda k, func=func: odeint(func(k), numpy.array([1.0]), times)[-1, 0])(2.0)
    found = ag.grad(lambda k: odeint(lambda y, t, k: -k * y, numpy.array([1.0]), times, (k,))[-1, 0])(2.0)
    assert numpy.isclose(found, -numpy.exp(-2.0), atol=1e-6)
