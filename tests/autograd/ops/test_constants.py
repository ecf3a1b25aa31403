"""Constants: what is taken for constant has a derivative of zero, by finite differences at random points.

Three tables say what is constant: `numpy_protocol.CONSTANT`, NumPy's functions that run on the values of Tensors;
`WITHOUT_DERIVATIVE`, the operations none of whose operands has a cotangent; and the letter S of other operations, an
operand without one. The tests enumerate them, so that a new entry without a row here fails.

An integer, a boolean or a text has no derivative by its type. A floating-point result must not change when its operand
moves by less than the distance to its next step.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd.engine.primitive import registry
from autograd.engine.tensor import TENSORS
from autograd.errors import RingtapeError
from autograd.ops.numpy_protocol import CONSTANT
from autograd.scipy import special
from autograd.scipy.stats import beta, chi2, gamma, poisson, t

from ...proofs.operations import CASES, WITHOUT_DERIVATIVE

Array = Any
STEP = 1e-6


def _floats(found: Any) -> list[Array]:
    """The floating-point arrays in a result; integers, booleans, texts and dtypes have no derivative by their type."""
    if isinstance(found, list | tuple):
        return [x for each in found for x in _floats(each)]
    array = found.array if found.__class__ in TENSORS else found
    is_number = isinstance(array, numpy.ndarray | numpy.generic | float | complex)
    return [numpy.asarray(array)] if is_number and numpy.asarray(array).dtype.kind in "fc" else []


def slopes(f: Callable[[Array], Any], x: Array, along: Array) -> list[Array]:
    """The derivatives of the floating-point arrays of ``f(x)`` along a direction, by central differences."""
    ahead, behind = _floats(f(x + STEP * along)), _floats(f(x - STEP * along))
    with numpy.errstate(invalid="ignore"):  # of infinities
        return [(a - b) / (2 * STEP) for a, b in zip(ahead, behind, strict=True)]


def require_constant(f: Callable[[Any], Any], x: Array, rng: numpy.random.Generator) -> None:
    """Fail unless the derivative of `f` is zero at `x`, and its result for a Tensor is one that no tape follows."""
    for slope in slopes(f, x, rng.normal(size=x.shape)):
        assert not numpy.any(slope), f"the derivative is {slope}"
    w = ag.Parameter(x)
    with ag.Tape():
        found = f(w)
    every = found if isinstance(found, list | tuple) else [found]
    assert not any(y.requires_grad for y in every if y.__class__ in TENSORS)
    values = [y.numpy() if y.__class__ in TENSORS else y for y in every if not callable(y)]
    expected = f(x)
    for y, z in zip(values, expected if isinstance(expected, list | tuple) else [expected], strict=True):
        numpy.testing.assert_array_equal(y, z)


def require_right_or_refused(f: Callable[[Any], Any], at: float, rng: numpy.random.Generator) -> bool:
    """Fail unless the gradient of `f` at a number is that of finite differences. True if the call is refused."""
    (slope,) = slopes(lambda x: np.asarray(f(x)) * 1.0, numpy.asarray(at), numpy.asarray(1.0))
    ct = rng.normal(size=slope.shape)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Output seems independent of input")
            found = ag.grad(lambda x: np.sum(f(x) * ct))(at)
    except RingtapeError as error:
        assert "fix" in str(error).lower(), str(error)
        return True
    numpy.testing.assert_allclose(found, numpy.sum(slope * ct), rtol=1e-5, atol=1e-7)
    return False


# -- NumPy's functions that run on the values ------------------------------------------------------------------------
OF_VALUES: dict[str, Callable[[Any], Any]] = {
    "allclose": lambda x: numpy.allclose(x, 0.3),
    "argwhere": lambda x: numpy.argwhere(x > 0),
    "array2string": numpy.array2string,
    "array_equal": lambda x: numpy.array_equal(x, x),
    "array_equiv": lambda x: numpy.array_equiv(x, x),
    "array_repr": lambda x: len(numpy.array_repr(x)) > 0,
    "array_str": lambda x: len(numpy.array_str(x)) > 0,
    "broadcast_shapes": lambda x: numpy.broadcast_shapes(x.shape, (1,)),
    "can_cast": lambda x: numpy.can_cast(x, "f4"),
    "common_type": lambda x: numpy.common_type(x).__name__,
    "diag_indices_from": numpy.diag_indices_from,
    "digitize": lambda x: numpy.digitize(x, [-0.5, 0.5]),
    "flatnonzero": lambda x: numpy.flatnonzero(x > 0),
    "gcd": lambda x: numpy.gcd((x * 10).astype(int), 4),
    "in1d": lambda x: getattr(numpy, "in1d", numpy.isin)(x, [0.5]),
    "iscomplexobj": numpy.iscomplexobj,
    "isdtype": lambda x: numpy.isdtype(x.dtype, "real floating"),
    "isin": lambda x: numpy.isin(x, [0.5]),
    "isrealobj": numpy.isrealobj,
    "isscalar": numpy.isscalar,
    "issubdtype": lambda x: numpy.issubdtype(x.dtype, float),
    "lcm": lambda x: numpy.lcm((x * 10).astype(int), 4),
    "lexsort": lambda x: numpy.lexsort((x[0], x[1])),
    "matrix_rank": numpy.linalg.matrix_rank,
    "may_share_memory": lambda x: numpy.may_share_memory(x, numpy.ones(2)),
    "min_scalar_type": lambda x: str(numpy.min_scalar_type(x)),
    "nanargmax": numpy.nanargmax,
    "nanargmin": lambda x: numpy.nanargmin(x, axis=0),
    "ndim": numpy.ndim,
    "nonzero": numpy.nonzero,
    "packbits": lambda x: numpy.packbits(x > 0),
    "ravel_multi_index": lambda x: numpy.ravel_multi_index((x > 0).astype(int), (2, 2, 2)),
    "result_type": lambda x: str(numpy.result_type(x, 1.0)),
    "save": lambda x: numpy.save(io.BytesIO(), x),
    "savetxt": lambda x: numpy.savetxt(io.StringIO(), x),
    "savez": lambda x: numpy.savez(io.BytesIO(), x),
    "savez_compressed": lambda x: numpy.savez_compressed(io.BytesIO(), x),
    "searchsorted": lambda x: numpy.searchsorted([-1.0, 0.0, 1.0], x),
    "shape": numpy.shape,
    "shares_memory": lambda x: numpy.shares_memory(x, numpy.ones(2)),
    "size": numpy.size,
    "tril_indices_from": numpy.tril_indices_from,
    "triu_indices_from": numpy.triu_indices_from,
    "typename": lambda x: numpy.typename(x.dtype.char),
    "unpackbits": lambda x: numpy.unpackbits((x > 0).astype("u1")),
    "unravel_index": lambda x: numpy.unravel_index((x > 0).astype(int), (2, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted({*CONSTANT, *OF_VALUES}))
def test_numpys_functions_on_values_are_constant(name: str) -> None:
    assert name in OF_VALUES, f"{name} of numpy_protocol.CONSTANT has no row here that shows that it is constant"
    assert name in CONSTANT, f"{name} is no constant any more: remove its row"
    for seed in range(3):
        rng = numpy.random.default_rng(seed)
        require_constant(OF_VALUES[name], rng.normal(size=(3, 3)), rng)


GATHERS: dict[str, Callable[[Any], Any]] = {
    "unique": numpy.unique,
    "unique_values": lambda x: numpy.unique_values(x),
    "extract": lambda x: numpy.extract(numpy.ones((3, 3), bool), x),
    "nextafter": lambda x: numpy.nextafter(x, 9.0),
    "modf": lambda x: numpy.modf(x)[0],
}


@pytest.mark.parametrize("name", GATHERS)
def test_a_function_that_selects_elements_is_found(name: str) -> None:
    rng = numpy.random.default_rng(1)
    with pytest.raises(AssertionError, match="the derivative is"):
        require_constant(GATHERS[name], rng.normal(size=(3, 3)), rng)


# -- operations without a cotangent ----------------------------------------------------------------------------------
def _of_integers(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: f(*((x * 4).astype(int) % 8 for x in xs))


_BITS = ("invert", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
OTHERS: dict[str, Callable[..., Any]] = {
    "argpartition": lambda x: np.argpartition(x, 1),
    "astype_discrete": lambda x: x.astype(int),
    **{name: _of_integers(getattr(np, name)) for name in _BITS},
}
"""The calls of operations that take more than arrays, or integers."""
EXCEPTED = {"stop_gradient": "the program says that its result is a constant"}


def _with_operand(f: Callable[..., Any], xs: list[Array], i: int, x: Any) -> Any:
    return f(*xs[:i], x, *xs[i + 1 :])


@pytest.mark.parametrize("name", sorted(WITHOUT_DERIVATIVE))
def test_operations_without_a_derivative_are_constant(name: str) -> None:
    operation = registry[name]
    assert set(operation.words) == {"S"}, f"{name} has a cotangent, and so cases instead of a reason"
    if name in EXCEPTED:
        return
    f = OTHERS.get(name) or getattr(np, name)
    for seed in range(3):
        rng = numpy.random.default_rng(seed)
        xs = [rng.normal(size=(2, 3)) for _ in operation.words]
        for i, x in enumerate(xs):
            require_constant(partial(_with_operand, f, xs, i), x, rng)


def test_all_operations_without_a_cotangent_have_a_reason() -> None:
    found = {name for name, each in registry.items() if set(each.words) == {"S"} and "example" not in name}
    assert found == set(WITHOUT_DERIVATIVE)


# -- operands without a cotangent ------------------------------------------------------------------------------------
X = numpy.array([0.31, -1.2, 2.53, 0.72])
POOLED = numpy.random.default_rng(0).permutation(8.0 + numpy.arange(8)).reshape(1, 1, 8) * 0.3


def _second_order(at: Any) -> Any:
    """The cotangent of a maximum in windows of ``POOLED * at``, which depends on the place of each maximum alone."""
    return ag.grad(lambda x: np.sum(ag.nn.functional.max_pool1d(x, 2) * numpy.arange(1.0, 5)))(POOLED * at)


FLOATS: dict[tuple[str, int], Callable[[Any], Any]] = {
    ("betainc", 0): lambda a: special.betainc(a, 2.5, 0.3),
    ("betainc", 1): lambda a: special.betainc(1.5, a, 0.3),
    ("clip", 1): lambda a: np.clip(X, a, 2.0),
    ("clip", 2): lambda a: np.clip(X, -1.0, a),
    ("gammainc", 0): lambda a: special.gammainc(a, 0.3),
    ("gammaincc", 0): lambda a: special.gammaincc(a, 0.3),
    ("heaviside", 0): lambda a: np.heaviside(X * a, 0.5),
    ("iv", 0): lambda a: special.iv(a, 0.3),
    ("ive", 0): lambda a: special.ive(a, 0.3),
    ("masked_attention", 3): lambda a: ag.nn.functional.scaled_dot_product_attention(
        *[numpy.ones((1, 1, 3, 2))] * 2, numpy.arange(6.0).reshape(1, 1, 3, 2), attn_mask=numpy.eye(3) * a
    ),
    ("max_pool_cotangent", 1): _second_order,
    ("max_pool_tangent", 1): lambda a: ag.jvp(
        lambda x: ag.nn.functional.max_pool1d(x, 2), (POOLED * a,), (numpy.arange(8.0).reshape(1, 1, 8),)
    )[1],
    ("rotary", 1): lambda a: ag.ops.rotary(numpy.ones((1, 1, 2, 4)), numpy.ones((2, 2)) * a, numpy.ones((2, 2))),
    ("rotary", 2): lambda a: ag.ops.rotary(numpy.ones((1, 1, 2, 4)), numpy.ones((2, 2)), numpy.ones((2, 2)) * a),
    **{(f"poisson.{f}", 0): lambda a, f=f: getattr(poisson, f)(a, 2.5) for f in ("cdf", "logpmf", "pmf")},
    **{(f"{d.__name__.rpartition('.')[2]}.{f}", 1): lambda a, d=d, f=f: getattr(d, f)(0.3, a, *[1.5] * (d is beta))
       for d in (beta, chi2, gamma, t) for f in ("cdf", "logcdf", "sf", "logsf")},
    **{(f"beta.{f}", 2): lambda a, f=f: getattr(beta, f)(0.3, 1.5, a) for f in ("cdf", "logcdf", "sf", "logsf")},
}  # fmt: skip
"""Calls in which an operand without a cotangent is a floating-point number, a."""
INTERNAL = {"undetermined": "compares two results of one decomposition", "unknown": "marks what is not computed"}


class _Listener:
    """Notes the operands without cotangent that are floating-point numbers, where others have a cotangent."""

    whole = True

    def __init__(self) -> None:
        self.found: set[tuple[str, int]] = set()

    def __call__(self, *_: Any) -> None: ...

    def see(self, phase: str, direction: str, name: str, facts: Any) -> None:
        operation, xs, _ = facts[:3]
        if (phase, direction) != ("begin", "forward") or set(getattr(operation, "words", "S")) == {"S"}:
            return
        for i, (x, letter) in enumerate(zip(xs, operation.letters(len(xs)), strict=True)):
            if letter == "S" and numpy.asarray(x.array if x.__class__ in TENSORS else x).dtype.kind in "fc":
                self.found.add((name, i))


def test_operands_without_a_cotangent_are_integers_or_have_a_row() -> None:
    listener = _Listener()
    with ag.events.listening(listener), numpy.errstate(all="ignore"):
        for c in CASES:
            with ag.Tape():
                c.f(*(ag.tensor(x, requires_grad=x.dtype.kind in "fc") for x in c.draw()))
    assert len(listener.found) > 20
    missing = {at for at in listener.found if at not in FLOATS and at[0] not in INTERNAL}
    assert not missing, f"operands that are taken for constants, without a row in FLOATS: {sorted(missing)}"


@pytest.mark.parametrize(("name", "place"), FLOATS)
def test_floating_operands_without_a_cotangent(name: str, place: int) -> None:
    assert registry[name].letters(len(registry[name].words))[place] == "S"
    require_right_or_refused(FLOATS[name, place], 1.13, numpy.random.default_rng(2))


# -- arguments that are easily taken for options ---------------------------------------------------------------------
M = numpy.arange(6.0).reshape(2, 3) + 0.5
GRID = numpy.array([0.0, 1.0, 2.0])
WITH_NAN = numpy.array([numpy.nan, 1.0, numpy.inf])
RIGHT: dict[str, Callable[[Any], Any]] = {
    "append": lambda a: np.append(X, a),
    "average, weights": lambda a: np.average(X * a, weights=numpy.arange(1.0, 5) * a + X**2),
    "average, sum of weights": lambda a: np.average(X, weights=numpy.arange(1.0, 5) * a, returned=True)[1],
    "choose": lambda a: np.choose([0, 1, 1, 0], [X * a, X + a]),
    "copysign": lambda a: np.copysign(X * a, -1.0),
    "copysign, sign": lambda a: np.copysign(1.3, a * X),
    "cov, weights": lambda a: np.cov(M * a, aweights=numpy.array([1.1, 2.5, 3.2]) * a),
    "diff, prepend": lambda a: np.diff(X, prepend=a),
    "divmod": lambda a: np.divmod(X, 0.37 * a)[1],
    "ediff1d, end": lambda a: np.ediff1d(X, to_end=a),
    "extract": lambda a: np.extract(X > 0, X * a),
    "floor_divide": lambda a: np.floor_divide(X, 0.37 * a),
    "full": lambda a: np.full((2,), a),
    "gradient, step": lambda a: np.gradient(X, a),
    "heaviside at 0": lambda a: np.heaviside(numpy.array([0.0, 1.0, -1.0, 0.0]), numpy.arange(1.0, 5) * a),
    "heaviside at 0, one value": lambda a: np.heaviside(numpy.array([0.0, 1.0, 0.0]), a),
    "interp, ends": lambda a: np.interp(-1.0, GRID * a, GRID, left=a),
    "interp, period": lambda a: np.interp(9.0 * a, GRID, GRID**2, period=5 * a),
    "interp, points": lambda a: np.interp(0.5, GRID * a, GRID**2),
    "linspace, stop": lambda a: np.linspace(0, a, 4),
    "linspace, step": lambda a: np.linspace(0, a, 4, retstep=True)[1],
    "masked_fill": lambda a: ag.tensor(X).masked_fill(X > 0, a),
    "mean, where": lambda a: np.mean(X[X > 0] * a),
    "modf": lambda a: np.modf(a * 1.37)[0],
    "pad, values": lambda a: np.pad(X * a, (1, 2), constant_values=3.0),
    "piecewise": lambda a: np.piecewise(X, [X > 0], [a, 2 * a]),
    "select, default": lambda a: np.select([X > 0], [X * a], default=a),
    "sign": lambda a: np.sign(X * a) * a,
    "sort": lambda a: np.sort(X * a),
    "trapezoid, x": lambda a: np.trapezoid(X, x=numpy.arange(4.0) * a),
    "trapezoid, dx": lambda a: np.trapezoid(X, dx=a),
    "union1d": lambda a: np.union1d(X * a, X * a * 2),
    "union1d, one is a constant": lambda a: np.union1d([9.5, 0.1], X * a),
    "unique": lambda a: np.unique(X * a),
    "unique of rows": lambda a: np.unique(M * a, axis=0),
    "unique of columns, repeated": lambda a: np.unique(numpy.stack([X, X]) * a, axis=1, return_counts=True)[0],
    "unique rebuilt": lambda a: (lambda u, i: u[i])(*np.unique(X * a, return_inverse=True)),
    "unique_all": lambda a: np.unique_all(X * a).values,
    "unique_counts": lambda a: np.unique_counts(X * a).values * np.unique_counts(X * a).counts,
    "unique_inverse": lambda a: (lambda u: u.values[u.inverse_indices])(np.unique_inverse(M * a)),
    "unique_values": lambda a: np.sort(np.unique_values(X * a)),
    "var, mean": lambda a: np.var(X * a, mean=np.mean(X * a, keepdims=True)),
}  # fmt: skip
REFUSED: dict[str, Callable[[Any], Any]] = {
    "frexp": lambda a: np.frexp(a)[0],
    "geomspace": lambda a: np.geomspace(a, 9.0, 4),
    "histogram, weights": lambda a: np.histogram(X, weights=X * a)[0],
    "intersect1d": lambda a: np.intersect1d(X * a, X * a),
    "nan_to_num, nan": lambda a: np.nan_to_num(np.asarray(WITH_NAN) * a, nan=a),
    "nan_to_num, posinf": lambda a: np.nan_to_num(np.asarray(WITH_NAN) * a, posinf=a),
    "nextafter": lambda a: np.nextafter(a, 9.0),
    "norm, ord": lambda a: np.linalg.norm(X * a, ord=3 * a),
    "percentile, q": lambda a: np.percentile(X * a, 30 * a),
    "percentile, q alone": lambda a: np.percentile(X, 30 * a),
    "quantile, q": lambda a: np.quantile(X * a, 0.3 * a),
    "setdiff1d": lambda a: np.setdiff1d(X * a, [9.0]),
    "setxor1d": lambda a: np.setxor1d(X * a, [9.0]),
    "trim_zeros": lambda a: np.trim_zeros(numpy.array([0.0, 1.0, 0.0]) * a),
}  # fmt: skip


@pytest.mark.parametrize("name", [*RIGHT, *REFUSED])
def test_arguments_that_are_easily_taken_for_options(name: str) -> None:
    f = {**RIGHT, **REFUSED}[name]
    refused = require_right_or_refused(f, 1.13, numpy.random.default_rng(3))
    assert refused == (name in REFUSED)
