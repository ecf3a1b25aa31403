"""Random numbers that are drawn on a device are bitwise the host's, and so are the elements that dropout drops."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import kernels, nn, random
from autograd.arrays.runtime import Program
from autograd.kernels.cuda import dropout, philox
from autograd.ops.nn.dropout import Mask
from autograd.random import Key
from autograd.random.philox import Source, words_of
from collectives import V

from ...arrays.devices import DEVICES, Device

Array = Any

pytestmark = pytest.mark.usefixtures("compiler_of_kernels")
there = pytest.fixture(params=DEVICES)(lambda request: request.param)

KEY = Key(7, "draws", 3)
SHAPES = ((), (1,), (7,), (33, 5), (4, 3, 11), (0, 3))
DRAWS: dict[str, Callable[..., Any]] = {
    "uniform": lambda x, dtype: random.uniform(KEY, x, low=-0.3, high=0.7, dtype=dtype),
    "uniform of one number": lambda x, dtype: random.uniform(KEY, x, low=0.1, high=0.1, dtype=dtype),
    "normal": lambda x, dtype: random.normal(KEY, x, dtype=dtype),
    "normal of a mean": lambda x, dtype: random.normal(KEY, x, mean=0.1, std=0.02, dtype=dtype),
    "truncated normal": lambda x, dtype: random.truncated_normal(KEY, x, low=-0.5, high=2.5, dtype=dtype),
    "truncated normal, far tail": lambda x, dtype: random.truncated_normal(KEY, x, low=-8.2, high=-7, dtype=dtype),
    "bernoulli": lambda x, dtype: random.bernoulli(KEY, x, 0.3),
    "bernoulli, always": lambda x, dtype: random.bernoulli(KEY, x, 1.0),
    "bernoulli, never": lambda x, dtype: random.bernoulli(KEY, x, 0.0),
    "integers": lambda x, dtype: random.integers(KEY, x, -5, 1 << 40),
    "all integers": lambda x, dtype: random.integers(KEY, x, -(1 << 63), 1 << 63),
}


def same_bits(a: Array, b: Array) -> None:
    assert a.dtype == b.dtype and a.shape == b.shape
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_bitwise_the_hosts(name: str, there: Device) -> None:
    for shape, dtype in product((*SHAPES, (3000,)), ("float64", "float32", "float16")):
        x = numpy.empty(shape, dtype)
        like = ag.tensor(there.move(x))
        with there.without_crossings():
            found = DRAWS[name](like, dtype)
        same_bits(there.values(found), DRAWS[name](ag.tensor(x), dtype))


def test_the_draws_use_all_three_formulas_of_the_quantile() -> None:
    assert numpy.abs(DRAWS["normal"](ag.tensor(numpy.empty(3000)), "float64")).max() > 3
    assert numpy.abs(DRAWS["truncated normal, far tail"](ag.tensor(numpy.empty(30)), "float64")).min() > 7


Box = tuple[tuple[int, int], ...]


def random_box(rng: Any, extents: tuple[int, ...]) -> Box:
    ends = [sorted(rng.integers(0, n + 1, 2).tolist()) if rng.random() < 0.6 else [0, n] for n in extents]
    return tuple((a, b) for a, b in ends)


def turned(box: Box, cut: int) -> tuple[tuple[Box, Box], ...]:
    """The two pieces of a box that its first dimension has at a cut, in the other order."""
    (first, end), *others = box
    n, rest = end - first, [(0, b - a) for a, b in others]
    return (
        (((0, n - cut), *rest), ((first + cut, end), *others)),
        (((n - cut, n), *rest), ((first, first + cut), *others)),
    )


def test_parts_and_pieces_of_a_logical_tensor(there: Device) -> None:
    rng = numpy.random.default_rng(0)
    for _ in range(40):
        extents = tuple(rng.integers(1, 7, rng.integers(1, 6)).tolist())
        box = random_box(rng, extents)
        shape = tuple(b - a for a, b in box)
        pieces: Any = ((tuple((0, n) for n in shape), box),)
        if rng.random() < 0.5:
            pieces = turned(box, int(rng.integers(0, shape[0] + 1)))
        source = Source((5, 6), extents, pieces)
        words = words_of(source, shape)
        drawn = philox.draw(there.move(numpy.empty(1)), shape, numpy.int64, ("integers", (1 << 64, 0)), *source)
        same_bits(there.values(drawn).view(numpy.uint64), words)
        x = rng.standard_normal(shape)
        mask, moved = Mask(source, 1 << 52, 2.0), there.move(x)
        y, kept = dropout.dropout_kernel.forward((moved,), (mask,), True)
        (back,) = dropout.dropout_kernel.backward(moved, kept, (moved,), (mask,), [True], True)
        expected = x * mask.factors(x)
        same_bits(there.values(y), expected)
        same_bits(there.values(back), expected)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_dropout_is_bitwise_the_hosts(dtype: str, there: Device) -> None:
    rng = numpy.random.default_rng(1)
    for shape, p in product((*SHAPES[1:], (1000,)), (0.1, 0.5, 1.0, 1e-20)):
        x, ct = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
        on_host, on_device = ag.Parameter(x), ag.Parameter(there.move(x))
        moved = ag.tensor(there.move(ct))
        assert kernels.find("dropout.dropout", (on_device.array,)) is dropout.dropout_kernel
        with ag.Tape() as tape:
            right = nn.dropout(on_host, p, key=KEY)
        tape.backward(right, ag.tensor(ct))
        with there.without_crossings():
            with ag.Tape() as tape:
                found = nn.dropout(on_device, p, key=KEY)
            tape.backward(found, moved)
            bare = nn.dropout(on_device, p, key=KEY)
        same_bits(there.values(found), right.numpy())
        same_bits(there.values(bare), right.numpy())
        same_bits(there.values(on_device.grad), on_host.grad.numpy())


def test_dropout_of_special_numbers_and_of_views(there: Device) -> None:
    x = numpy.array([numpy.nan, numpy.inf, -0.0, 1e-40, *numpy.arange(60.0)], numpy.float32)
    moved = there.move(x)
    for part in (slice(None), slice(1, None), slice(3, 40), slice(0, 60, 2)):
        with numpy.errstate(all="ignore"):
            right = nn.dropout(ag.tensor(x[part].copy()), 0.5, key=KEY).numpy()
            found = there.values(nn.dropout(ag.tensor(moved[part]), 0.5, key=KEY))
        if there.name == "cupy":
            right[abs(right) < numpy.finfo(numpy.float32).tiny] *= 0  # subnormal numbers are zeros there
        numpy.testing.assert_array_equal(found, right)


def test_second_derivatives_of_dropout(there: Device) -> None:
    x = numpy.random.default_rng(2).standard_normal(20)

    def penalty(z: Any) -> Any:
        return (ag.grad(lambda w: (nn.dropout(w, 0.5, key=KEY) ** 3).sum())(z) ** 2).sum()

    expected = ag.grad(penalty)(x)
    numpy.testing.assert_allclose(there.values(ag.grad(penalty)(there.move(x))), expected, rtol=1e-12)


def test_ranks_drop_the_elements_that_one_rank_drops(there: Device) -> None:
    """Each of two ranks holds two pieces of a value, as in zigzag order."""
    x = numpy.random.default_rng(3).standard_normal((3, 8, 5)).astype(numpy.float32)
    whole = nn.dropout(ag.tensor(x), 0.4, key=KEY).numpy()
    pieces = [[slice(0, 2), slice(6, 8)], [slice(2, 4), slice(4, 6)]]

    def rank() -> tuple[Array, Array, Array]:
        with cc.Mesh(cp=2) as mesh:
            own = pieces[int(mesh.axis("cp").rank)]
            part = numpy.concatenate([x[:, piece] for piece in own], axis=1)
            value = ag.tensor(there.move(part), {"cp": V}, requires_grad=True)
            key = KEY.placed("cp", 1, own, extent=8)
            found = []
            for _ in range(2):  # the second call finds the signature of the first
                with ag.Tape() as tape:
                    y = nn.dropout(value, 0.4, key=key)
                tape.backward(y, ag.tensor(there.move(part), {"cp": V}))
                assert y.layout["cp"] is V
                found = [there.values(y), there.values(value.grad)]
                value.zero_grad()
            return found[0], found[1], numpy.concatenate([whole[:, piece] for piece in own], axis=1)

    for y, grad, right in cc.run(rank, 2):
        same_bits(y, right)
        same_bits(grad, right)  # of the part itself as the cotangent


def test_one_mask_for_varying_values_is_refused_on_a_device_too(there: Device) -> None:
    with cc.Mesh(dp=1):
        x = ag.tensor(there.move(numpy.ones(4)), {"dp": V})
        with pytest.raises(ag.LayoutError, match="along"):
            nn.dropout(x, 0.5, key=KEY)


# -- planted faults --------------------------------------------------------------------------------------------------

FAULTS = {
    "the counter begins at 0": ("c0 = counter + 1", "c0 = counter"),
    "nine rounds": ("round < 10", "round < 9"),
    "words of the next block": ("(Word)word / 4 + 1", "(Word)word / 4 + 2"),
    "53 bits of the lower end": ("words[i] >> 11 < limit", "(words[i] & 0x1fffffffffffff) < limit"),
    "the step of an outer dimension": ("word += i * p.outer_words", "word += i * p.inner_words"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = FAULTS[fault]
    assert old in philox.PROGRAM.text
    planted = Program("planted_philox", philox.PROGRAM.text.replace(old, new), ("dropout<double>", "integers"))
    for module in (philox, dropout):
        monkeypatch.setattr(module, "PROGRAM", planted)
    with pytest.raises(AssertionError):
        test_parts_and_pieces_of_a_logical_tensor(Device())
