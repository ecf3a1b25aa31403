"""Random calls beside NumPy, and the proof that the comparison sees planted faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd.ops import arguments, manipulation, shape, sorting
from tests.autograd.numpy import fuzz


def _report(faults: list[tuple[str, str]]) -> str:
    return "\n".join(f"{outcome}: {seen}" for outcome, seen in sorted(faults))


def test_a_thousand_random_calls_agree_with_numpy() -> None:
    counts, faults = fuzz.run(1000, seed=12)
    assert not faults, _report(faults)
    assert counts["agreed"] > 800


@pytest.mark.slow
def test_twenty_thousand_random_calls_agree_with_numpy() -> None:
    # the same with a line per thousand calls: python -m tests.autograd.numpy.fuzz --calls 20000 --seed 1
    counts, faults = fuzz.run(20_000, seed=1, progress=True)
    assert not faults, _report(faults)
    assert counts["agreed"] > 16_000


def test_every_function_with_a_derivative_is_called() -> None:
    ours = {name for name in np.__all__ if getattr(np, name) is not getattr(numpy, name, None)}
    called = {name.partition(".")[0] for name in fuzz.RECIPES}
    constants = {"arange", "eye", "identity", "ones", "tri", "zeros"}  # of plain numbers
    others = {"array_split", "builtins", "c_", "r_", "empty_like", "from_dlpack", "make_diagonal", "msort", "random",
              "row_stack"}  # fmt: skip
    assert ours - called <= constants | others


@pytest.fixture
def without_the_reference(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ours alone decides what is legal."""
    monkeypatch.setattr(arguments, "ask", lambda plain, args, words: None)
    monkeypatch.setattr(arguments, "is_free", lambda xs: False)
    yield


def _wrong_axis(axis: Any, ndim: int, name: str = "axis") -> int:
    return int(axis) % max(ndim, 1)


@pytest.mark.parametrize("name", ["roll", "sort", "diff", "moveaxis", "trace", "take", "swapaxes"])
def test_an_axis_modulo_is_seen(name: str, monkeypatch: pytest.MonkeyPatch, without_the_reference: None) -> None:
    for module in (arguments, manipulation, sorting, shape):
        monkeypatch.setattr(module, "normal_axis", _wrong_axis)
    _, faults = fuzz.run(300, seed=3, names=[name])
    assert any(outcome == "accepted" and "AxisError" in seen for outcome, seen in faults)


def test_a_swallowed_argument_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.interp
    monkeypatch.setattr(np, "interp", lambda *args, period=None, **words: whole(*args, **words))
    _, faults = fuzz.run(300, seed=3, names=["interp"])
    assert any(outcome == "value" for outcome, _ in faults)


def test_an_untyped_error_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "typed", lambda error, text: error)
    _, faults = fuzz.run(300, seed=3, names=["roll"])
    assert any(outcome == "internal" for outcome, _ in faults)


# -- what the issue lists --------------------------------------------------------------------------------------------
X = numpy.arange(6.0).reshape(2, 3)

MISSING_AXIS = {
    "roll": lambda x: np.roll(x, 1, 5),
    "norm": lambda x: np.linalg.norm(x, axis=5),
    "sort": lambda x: np.sort(x, 5),
    "argsort": lambda x: np.argsort(x, 5),
    "partition": lambda x: np.partition(x, 0, 5),
    "diff": lambda x: np.diff(x, axis=5),
    "take": lambda x: np.take(x, 0, 5),
    "take_along_axis": lambda x: np.take_along_axis(x, numpy.zeros((2, 3), int), 5),
    "moveaxis": lambda x: np.moveaxis(x, 5, 0),
    "rollaxis": lambda x: np.rollaxis(x, 5),
    "transpose": lambda x: np.transpose(x, (0, 5)),
    "squeeze": lambda x: np.squeeze(x, 5),
    "trace": lambda x: np.trace(x, 0, 0, 5),
    "diagonal": lambda x: np.diagonal(x, 0, 0, 5),
    "repeat": lambda x: np.repeat(x, 2, 5),
    "delete": lambda x: np.delete(x, 0, 5),
    "gradient": lambda x: np.gradient(x, axis=[5]),
    "trapezoid": lambda x: np.trapezoid(x, axis=5),
    "rot90": lambda x: np.rot90(x, 1, (0, 5)),
    "unstack": lambda x: np.unstack(x, axis=5),
    "cumsum": lambda x: np.cumsum(x, 5),
    "cross": lambda x: np.cross(x, x, axis=5),
    "fft": lambda x: np.fft.fft(x, axis=5),
    "rfft": lambda x: np.fft.rfft(x, axis=5),
    "irfft": lambda x: np.fft.irfft(x, axis=5),
    "fftshift": lambda x: np.fft.fftshift(x, 5),
    "linspace": lambda x: np.linspace(x, 1.0, 3, axis=5),
    "stack": lambda x: np.stack([x, x], 5),
    "concatenate": lambda x: np.concatenate([x, x], 5),
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", MISSING_AXIS)
def test_an_axis_that_does_not_exist_is_refused(name: str, recorded: bool) -> None:
    with ag.Tape():
        x = ag.tensor(X, requires_grad=recorded)
        with pytest.raises(ag.RingtapeError) as error:
            MISSING_AXIS[name](x)
    assert isinstance(error.value, ValueError | IndexError)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    "call, kind",
    [
        (lambda x: np.percentile(x, -1), ValueError),
        (lambda x: np.percentile(x, 101), ValueError),
        (lambda x: np.add(x, None), TypeError),
        (lambda x: x + None, TypeError),
        (lambda x: np.interp(x, numpy.arange(3.0), numpy.arange(2.0)), ValueError),
        (lambda x: np.fft.rfft(x + 1j), TypeError),
        (lambda x: np.kron(numpy.array([object()]), x * 1j), TypeError),
        (lambda x: np.sum(x, axis=(0, 0)), ValueError),
        (lambda x: np.sum(x, axis=1.0), TypeError),
        (lambda x: np.sum(x, axis="x"), TypeError),
        (lambda x: np.argpartition(x, 0, kind="x"), ValueError),
        (lambda x: np.concatenate([x, x], casting="x"), ValueError),
        (lambda x: np.linalg.outer(x, x), ValueError),
        (lambda x: np.linalg.inv(x), np.linalg.LinAlgError),
        (lambda x: x[9], IndexError),
        (lambda x: np.reshape(x, "x"), TypeError),
        (lambda x: ag.tensor(numpy.array(["a"])), TypeError),
        (lambda x: ag.tensor(numpy.array(["2020-01-01"], "datetime64[D]")), TypeError),
    ],
)
def test_bad_arguments_are_refused_with_numpys_kind_of_error(call: Any, kind: type, recorded: bool) -> None:
    with ag.Tape():
        x = ag.tensor(X, requires_grad=recorded)
        with pytest.raises(ag.RingtapeError) as error:
            call(x)
    assert isinstance(error.value, kind)


def test_axis_errors_are_numpys_axis_errors() -> None:
    with pytest.raises(numpy.exceptions.AxisError) as error:
        np.sum(ag.tensor(X), axis=2)
    assert isinstance(error.value, ag.AxisError) and isinstance(error.value, IndexError)


def test_copysign_of_unsigned_integers_is_a_float() -> None:
    x = numpy.array([1, 2], "uint8")
    y = np.copysign(ag.tensor(x), -1.0)
    assert y.array.dtype == numpy.copysign(x, -1.0).dtype
    assert y.numpy().tolist() == [-1.0, -2.0]


def test_the_period_of_interp_and_the_start_of_a_cumulative_sum_are_used() -> None:
    x = numpy.array([-0.5, 3.5])
    for function in (lambda v, m: m.interp(v, [0.0, 1.0, 2.0], [1.0, 2.0, 5.0], period=3.0),
                     lambda v, m: m.cumulative_sum(v, include_initial=True)):  # fmt: skip
        with ag.Tape():
            y = function(ag.tensor(x, requires_grad=True), np)
        assert y.numpy().tolist() == pytest.approx(function(x, numpy).tolist())


NUMBER = numpy.array(2.0)
SAME: dict[str, Any] = {
    "squeeze of a number": lambda np, x: np.squeeze(x(NUMBER), axis=0),
    "max of a number": lambda np, x: np.max(x(NUMBER), axis=-1),
    "sum of a number": lambda np, x: np.sum(x(NUMBER), axis=0),
    "method of a number": lambda np, x: x(NUMBER).min(axis=0),
    "nanvar of a number": lambda np, x: np.nanvar(x(NUMBER), axis=0),
    "nanvar, complex ddof": lambda np, x: np.nanvar(x(numpy.ones(3, "f")), ddof=2 + 1j),
    "linspace without a step": lambda np, x: np.linspace(x(numpy.ones(2)), 3.0, 0, retstep=True)[1],
    "linspace of integers": lambda np, x: np.linspace(x(numpy.array([-1.5, 2.5])), 1.0, 4, dtype=int),
    "linspace, step": lambda np, x: np.linspace(x(numpy.ones(2, "f")), 3, numpy.int64(3), retstep=True)[1],
    "cross, inf": lambda np, x: np.cross(x(numpy.array([1.0, numpy.inf, 2.0])), numpy.array([2.0, 3.0])),
    "cross, inf second": lambda np, x: np.cross(x(numpy.array([1.0, 2.0])), numpy.array([numpy.inf, 3.0, 2.0])),
    "piecewise of nan": lambda np, x: np.piecewise(x(numpy.array([numpy.nan, 2.0])), [[False, True]], [numpy.square]),
    "average, list of axes": lambda np, x: np.average(x(numpy.ones((2, 3))), [0]),
    "cond of zeros": lambda np, x: np.linalg.cond(x(numpy.array([[-1.0, 0.0], [0.0, -0.0]]))),
    "vecdot, axis": lambda _, x: numpy.vecdot(x(numpy.ones((3, 2))), numpy.ones((3, 2)), axis=0),
}  # fmt: skip
if numpy.lib.NumpyVersion(numpy.__version__) >= "2.5.0":  # which refuses vectors with two components; ours takes them
    del SAME["cross, inf"], SAME["cross, inf second"]


@pytest.mark.parametrize("name", SAME)
def test_these_calls_agree_with_numpy_while_a_tape_records(name: str) -> None:
    want = SAME[name](numpy, lambda a: a)
    with ag.Tape():
        found = SAME[name](np, lambda a: ag.Parameter(a.copy()))
    found = found.array if isinstance(found, ag.Tensor) else found
    numpy.testing.assert_array_equal(found, want)
    assert numpy.asarray(found).dtype == numpy.asarray(want).dtype


def test_these_calls_are_refused_as_in_numpy() -> None:
    x = ag.tensor(numpy.ones(3))
    with pytest.raises(ag.ArgumentError, match="'out' must be an array"):
        x.dot(x, ())
    with pytest.raises(ValueError, match="axis 0 was given for an array of 0 dimensions") as caught:
        np.mean(ag.tensor(2.0), axis=0)
    assert isinstance(caught.value, ag.RingtapeError)
    for extents, options in (((2,), {"dtype": 2 + 1j}), (None, {}), ((2,), {"order": "x"})):
        with pytest.raises(ag.RingtapeError):
            np.full(extents, 1.0, **options)


def test_a_dtype_is_that_of_the_computation() -> None:
    zero, base = numpy.int32(0), numpy.array([2, 3])
    for name, x, y, dtype in (("remainder", zero, numpy.zeros((2, 2), "i4"), "e"), ("power", base, [-1, 2], "d")):
        with numpy.errstate(all="ignore"):
            want = getattr(numpy, name)(x, y, dtype=dtype)
            found = getattr(np, name)(ag.tensor(x), y, dtype=dtype).numpy()
        numpy.testing.assert_array_equal(found, want)
        assert found.dtype == want.dtype


def test_what_numpy_refuses_is_refused() -> None:
    x = ag.tensor(numpy.ones((2, 2)))
    for refused in (lambda: np.matmul(x, x, axes=None), lambda: np.power(x, 2.0, {}, out=None),
                    lambda: np.add(x, x, where=None)):  # fmt: skip
        with pytest.raises(ag.RingtapeError):
            refused()


def test_a_base_beyond_the_integers_of_numpy() -> None:
    y = ag.grad(lambda x: np.sum(np.power(2**70, x)))(numpy.array([0.5]))
    assert numpy.allclose(y, 2.0**35 * 70 * numpy.log(2.0))
