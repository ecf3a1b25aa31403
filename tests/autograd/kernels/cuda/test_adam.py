"""Adam, momentum and sums of squares of many arrays in one launch, against the kernels of the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy
import pytest

from autograd.arrays import runtime_of
from autograd.kernels import adam as on_host
from autograd.kernels.cuda import adam as adam_file
from autograd.kernels.cuda import momentum as momentum_file
from autograd.kernels.cuda import squares as squares_file
from autograd.kernels.cuda.adam import adam
from autograd.kernels.cuda.batch import MOST_ADDRESSES, PIECE, Batch, pieces_of
from autograd.kernels.cuda.momentum import momentum
from autograd.kernels.cuda.squares import squares
from autograd.kernels.cuda.values import store

from ...arrays.devices import DEVICES
from . import on_cpu

pytestmark = pytest.mark.usefixtures("compiler_of_kernels")
SIZES = (1, 7, PIECE, PIECE + 5, 256)
RATES = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6}


@pytest.fixture(params=DEVICES)
def there(request: pytest.FixtureRequest) -> Any:
    return request.param


def draws(seed: int, dtype: Any, sizes: Sequence[int] = SIZES) -> list[Any]:
    random = numpy.random.default_rng(seed)
    return [random.standard_normal(n).astype(dtype) for n in sizes]


def moved(there: Any, arrays: Sequence[Any]) -> list[Any]:
    return [there.move(x) for x in arrays]


def close(there: Any, found: Sequence[Any], needed: Sequence[Any], rtol: float = 2e-6) -> None:
    for x, y in zip(found, needed, strict=True):
        numpy.testing.assert_allclose(there.values(x), y, rtol=rtol, atol=1e-7)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_adam_of_many_parameters(dtype: str, decoupled: bool, there: Any) -> None:
    ps, firsts = draws(0, dtype), draws(1, dtype)
    seconds = [x * x for x in draws(2, dtype)]
    device = [moved(there, xs) for xs in (ps, firsts, seconds)]
    batch = Batch(*device, None)
    for step in (1, 2):
        gs = draws(step + 2, dtype)
        options: dict[str, Any] = {"step": step, "weight_decay": 0.1, "decoupled": decoupled, **RATES}
        given = moved(there, gs)
        with there.without_crossings():
            adam(batch, given, **options)
        for p, g, m, v in zip(ps, gs, firsts, seconds, strict=True):
            on_host.adam(p, g, m, v, **options)
    for column, needed in zip(device, (ps, firsts, seconds), strict=True):
        close(there, column, needed)


@pytest.mark.parametrize("half_gradients", [True, False])
def test_adam_with_rounded_copies_and_a_loss_scale(half_gradients: bool, there: Any) -> None:
    ps, ms, vs, copies = (draws(k, "float32") for k in range(4))
    vs = [x * x for x in vs]
    copies = [x.astype("float16") for x in copies]
    gs = [(64 * x).astype("float16" if half_gradients else "float32") for x in draws(5, "float32")]
    device = [moved(there, xs) for xs in (ps, ms, vs, copies)]
    lost = there.move(numpy.zeros(1))
    batch = Batch(*device)
    adam(batch, moved(there, gs), step=3, scale=1 / 64, lost=lost, **RATES)
    for p, g, m, v in zip(ps, gs, ms, vs, strict=True):
        on_host.adam(p, g.astype("float32") / 64, m, v, step=3, **RATES)
    close(there, device[0], ps)
    assert there.values(lost)[0] == 0
    for copy, p in zip(device[3], device[0], strict=True):
        assert (there.values(copy) == there.values(p).astype("float16")).all()
    device[0][4][...] = 1e5  # beyond the largest float16
    adam(batch, moved(there, gs), step=3, scale=1 / 64, lost=lost, **RATES)
    assert there.values(lost)[0] == 1


def test_bfloat16() -> None:
    p, m, g = draws(0, "float32", [100])[0], numpy.zeros(100, "float32"), draws(1, "float32", [100])[0]
    v, bits, copy = m.copy(), (g.view("uint32") >> 16).astype("uint16"), numpy.zeros(100, "uint16")
    rows = numpy.array([[x.ctypes.data for x in (p, m, v, copy)] + [100]], numpy.int64)
    table = numpy.zeros(MOST_ADDRESSES, numpy.int64)
    table[0] = bits.ctypes.data
    numbers = adam_file.values(p.dtype, 1, decoupled=True, weight_decay=0.0, **RATES)
    wide = (bits.astype("uint32") << 16).view("float32")
    needed = p.copy()
    on_host.adam(needed, wide, m.copy(), v.copy(), step=1, **RATES)
    on_cpu.run(
        adam_file.PROGRAM, "adam<float, BFloat16, BFloat16>", (1,), (256,),
        (rows, numpy.zeros((1, 2), numpy.int32), numpy.int32(0), table.view(f"V{table.nbytes}")[0],
         numbers.view(f"V{numbers.nbytes}")[0], numpy.uintp(0), numpy.uintp(0)), 0,
    )  # fmt: skip
    numpy.testing.assert_allclose(p, needed, rtol=2e-6)
    numpy.testing.assert_allclose((copy.astype("uint32") << 16).view("float32"), p, rtol=2.0**-8)


def test_unaligned_arrays(there: Any) -> None:
    """Views of flat buffers may begin anywhere."""
    ps, gs, ms, vs = ([x[1:] for x in draws(k, "float32", (1000, 50))] for k in range(4))
    vs = [x * x for x in vs]
    device = [[there.move(numpy.concatenate([[0], x]).astype("float32"))[1:] for x in xs] for xs in (ps, ms, vs)]
    adam(Batch(*device, None), moved(there, gs), step=1, **RATES)
    for p, g, m, v in zip(ps, gs, ms, vs, strict=True):
        on_host.adam(p, g.copy(), m, v, step=1, **RATES)
    close(there, device[0], ps)


def test_numbers_on_the_device(there: Any) -> None:
    """They take the place of those that are passed: so a captured launch uses new ones."""
    p, m, v, g = (there.move(x) for x in draws(0, "float32", [30] * 4))
    v *= v
    needed = [there.values(x).copy() for x in (p, m, v)]
    numbers = there.move(numpy.zeros(9, "float32"))
    store(numbers, adam_file.values(p.dtype, 7, decoupled=False, weight_decay=0.0, **RATES))
    adam(Batch([p], [m], [v], None), [g], step=1, lr=100.0, numbers=numbers)
    on_host.adam(needed[0], there.values(g), *needed[1:], step=7, **RATES)
    close(there, [p], [needed[0]])


def test_few_launches(there: Any) -> None:
    """200 small parameters take one launch, and more than the addresses of one launch take two."""
    runtime: Any = runtime_of(type(there.move(numpy.zeros(1))))
    for count, launches in ((200, 1), (MOST_ADDRESSES + 1, 2)):
        ps, ms, vs, gs = (draws(k, "float32", [3] * count) for k in range(4))
        vs = [x * x for x in vs]
        device = [moved(there, xs) for xs in (ps, ms, vs)]
        batch = Batch(*device, None)
        with mock.patch.object(type(runtime), "launch", autospec=True, side_effect=type(runtime).launch) as launch:
            adam(batch, moved(there, gs), step=1, **RATES)
        assert launch.call_count == launches
        on_host.adam(ps[-1], gs[-1], ms[-1], vs[-1], step=1, **RATES)
        close(there, device[0][-1:], ps[-1:])


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("has_velocity", [False, True])
def test_momentum(has_velocity: bool, nesterov: bool, there: Any) -> None:
    ps, vs, gs = (draws(k, "float64") for k in range(3))
    device = moved(there, ps), moved(there, vs)
    momentum(Batch(device[0], device[1] if has_velocity else None, None), moved(there, gs), 0.1, 0.9, share=0.7,
             weight_decay=0.2, nesterov=nesterov)  # fmt: skip
    for p, v, g in zip(ps, vs, gs, strict=True):
        d = g + 0.2 * p
        if has_velocity:
            v *= 0.9
            v += 0.7 * d
            d = d + 0.9 * v if nesterov else v
        p -= 0.1 * d
    close(there, device[0], ps, 1e-12)
    close(there, device[1], vs, 1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_sums_of_squares_and_scaled_outputs(dtype: str, there: Any) -> None:
    xs = draws(0, dtype)
    given = moved(there, xs)
    wide = numpy.dtype(numpy.float32 if dtype == "float16" else dtype)
    outs = [there.move(numpy.zeros(x.size, wide)) for x in xs]
    found = there.values(squares(given, outs, 0.25))
    needed = sum(((x.astype(float) / 4) ** 2).sum() for x in xs)
    assert found[1] == 0 and abs(found[0] - needed) < 1e-6 * needed
    close(there, outs, [x.astype(wide) / 4 for x in xs], 1e-7)
    again = there.values(squares(given, None, 0.25))
    assert (again == found).all()  # the order of the sum is fixed
    assert squares(given, given, 0.25, with_sum=False) is None
    close(there, given, [(x.astype(wide) / 4).astype(dtype) for x in xs], 1e-7)
    for lost in (numpy.inf, numpy.nan):
        given[3][PIECE + 2] = lost
        assert there.values(squares(given))[1] == 1


def test_more_arrays_than_one_launch_takes(there: Any) -> None:
    xs = draws(0, "float64", [2] * (MOST_ADDRESSES // 2 + 3))
    found = there.values(squares(moved(there, xs)))
    assert abs(found[0] - (numpy.concatenate(xs) ** 2).sum()) < 1e-9
    assert pieces_of(moved(there, xs)) is pieces_of(moved(there, xs))


def planted(file: Any, kernels: str, old: str, new: str) -> Any:
    """Some kernels of a file with a fault."""
    text, some = file.PROGRAM.text, tuple(k for k in file.PROGRAM.kernels if k.startswith(kernels) or k == "total")
    assert old in text and some
    return mock.patch.object(file, "PROGRAM", file.PROGRAM._replace(text=text.replace(old, new), kernels=some))


FAULTS = {
    "the gradient of the first parameter for all": ("gradients.at[mine.array - first_row]", "gradients.at[0]"),
    "the second half of the loads is not used": ("at += AT_ONCE * threads", "at += AT_ONCE * threads * 2"),
    "the rest of an array is left out": ("int i = packs * N + threadIdx.x", "int i = count"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(fault: str) -> None:
    there = DEVICES[0].values[0]
    with planted(adam_file, "adam<double", *FAULTS[fault]), pytest.raises(AssertionError):
        test_adam_of_many_parameters("float64", True, there)


def test_a_fault_in_the_sum_is_seen() -> None:
    there = DEVICES[0].values[0]
    with planted(squares_file, "squares<double", "if (is_lost(v)) lost = 1;", ""), pytest.raises(AssertionError):
        test_sums_of_squares_and_scaled_outputs("float64", there)
    fault = "n.keep * velocity + n.share", "n.keep * velocity + n.keep"
    with planted(momentum_file, "momentum<double", *fault), pytest.raises(AssertionError):
        test_momentum(True, False, there)
