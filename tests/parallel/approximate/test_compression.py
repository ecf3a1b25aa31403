"""Gradient compression against serial references of the algorithms, on 1, 2, 3 and 5 threads."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.arrays.shape_only import DRY, Shaped
from autograd.errors import ArgumentError, DtypeError, OptionError, ShapeError
from collectives.inspect.observing import observing
from collectives.transports.dry import DryCommunicator
from collectives.transports.request import whole_bytes
from collectives.transports.steps import finish
from parallel import DataParallel
from parallel.approximate.compressed_adam import CompressedAdam
from parallel.approximate.compression import Compression
from parallel.approximate.error_feedback import ParameterState
from parallel.approximate.low_rank import PowerSGD, orthonormal
from parallel.approximate.quantised import Float16, Int8, OneBit
from parallel.approximate.sparse import RandomK, TopK
from parallel.data.buckets import Bucket, Place

from ...collectives.launch import launch_command
from . import compression_references as reference

RANKS = [1, 2, 3, 5]
STEPS = 4
NAMES = ("weight", "bias", "kernel", "empty", "last")
SHAPES: list[tuple[int, ...]] = [(12, 17), (7,), (9, 3, 5), (0,), (3,)]
SIZES = [math.prod(shape) for shape in SHAPES]

Make = Callable[[], Compression]
METHODS: dict[str, Make] = {
    "float16": Float16,
    "int8": lambda: Int8(block=50),
    "int8 without feedback": lambda: Int8(block=50, error_feedback=False),
    "one bit": lambda: OneBit(block=50),
    "one bit of momentum": lambda: OneBit(block=50, momentum=0.8),
    "top-k": lambda: TopK(0.05, smallest=100),
    "top-k with momentum": lambda: TopK(0.05, momentum=0.9, smallest=100),
    "random-k": lambda: RandomK(0.05, smallest=100),
    "random-k with momentum": lambda: RandomK(0.05, momentum=0.9, smallest=100),
    "PowerSGD": lambda: PowerSGD(rank=2),
    "PowerSGD of rank 1": lambda: PowerSGD(rank=1),
}
FEEDBACK = ["int8", "one bit", "top-k", "random-k", "PowerSGD"]  # what they leave out of one step is in the next ones


def make_reference(name: str, ranks: int) -> Any:
    counts = [round(0.05 * size) if size >= 100 else 0 for size in SIZES]
    momentum = 0.9 if name.endswith("with momentum") else 0.0
    if name.startswith("PowerSGD"):
        return reference.PowerSGD(1 if name.endswith("1") else 2, NAMES, SHAPES, ranks)
    if name.startswith("top-k"):
        return reference.TopK(counts, SIZES, ranks, momentum)
    if name.startswith("random-k"):
        return reference.RandomK(counts, NAMES, SIZES, ranks, momentum)
    if name == "float16":
        return reference.Quantised(SIZES, ranks, reference.float16_rule, 10**9, False)
    if name.startswith("int8"):
        return reference.Quantised(SIZES, ranks, reference.int8_rule, 50, name == "int8")
    return reference.Quantised(SIZES, ranks, reference.sign_rule, 50, True, 0.8 if "momentum" in name else 0.0)


def gradients(rank: int, step: int) -> list[np.ndarray]:
    """Flat gradients of all parameters: multiples of 2^-30, so that their sums are exact in float64."""
    generator = np.random.default_rng([rank, step])
    found = [np.round(2**30 * generator.normal(size=size) * 10.0 ** (i % 3)) / 2**30 for i, size in enumerate(SIZES)]
    found[2][1::3] = 0  # elements that never have a gradient
    return found


def bucket_of(parts: list[np.ndarray], chosen: list[int] | None = None, dtype: Any = float, used: Any = None) -> Bucket:
    """A bucket of some parameters, with gaps between their gradients as `lay_out` leaves them."""
    chosen = list(range(len(parts))) if chosen is None else chosen
    offsets = np.cumsum([0] + [-(-SIZES[i] // 8) * 8 for i in chosen]).tolist()
    place = Place(
        tuple(chosen), tuple(NAMES[i] for i in chosen), tuple(SHAPES[i] for i in chosen), tuple(offsets[:-1]),
        offsets[-1], np.empty(0, dtype),
    )  # fmt: skip
    bucket = Bucket(0, place, np.zeros(place.size, dtype))
    for i, part in zip(chosen, bucket.parts(), strict=True):
        part[...] = parts[i].reshape(part.shape)
    bucket.flags[:] = 1 if used is None else [used[i] for i in chosen]
    return bucket


def sums_of(bucket: Bucket) -> list[np.ndarray]:
    return [part.ravel().copy() for part in bucket.parts()]


def train(make: Make, ranks: int, steps: int = STEPS, dtype: Any = float, state: Any = None, start: int = 0,
          chosen: Callable[[int], list[list[int]]] = lambda step: [[0, 1, 2, 3, 4]]) -> list[Any]:  # fmt: skip
    """On each rank: the delivered sums by step and parameter, the state, and the flat buffers of all buckets."""

    def program() -> Any:
        group, method = cc.world(), make()
        if state is not None:
            method.load_state_dict(state, group)
        sums, flats = [], []
        for step in range(start, start + steps):
            found: dict[int, np.ndarray] = {}
            for indices in chosen(step):
                bucket = bucket_of(gradients(group.index, step), indices, dtype)
                finish(method.reduce(bucket, group))
                found |= zip(indices, sums_of(bucket), strict=True)
                flats.append(bucket.flat.copy())
            sums.append([found[i] for i in range(len(SIZES))])
        return sums, method.state_dict(group), flats

    return cc.run(program, ranks)


def given(ranks: int, steps: int, start: int = 0) -> list[np.ndarray]:
    """The sum of all gradients of some steps."""
    return [sum(gradients(r, t)[i] for r in range(ranks) for t in range(start, start + steps)) for i in range(5)]


def distance(xs: list[np.ndarray], ys: list[np.ndarray]) -> float:
    scale = max(float(np.abs(y).max(initial=0)) for y in ys)
    return max(float(np.abs(x - y).max(initial=0)) for x, y in zip(xs, ys, strict=True)) / scale


# -- the algorithms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", METHODS)
def test_equals_the_serial_algorithm(name: str, ranks: int) -> None:
    results, serial = train(METHODS[name], ranks), make_reference(name, ranks)
    for step in range(STEPS):
        expected = serial.step([gradients(r, step) for r in range(ranks)])
        assert distance(results[0][0][step], expected) < 1e-9, step
    for _, _, flats in results:  # the same bits on every rank, the exact number of users, and zeros between gradients
        for flat, first in zip(flats, results[0][2], strict=True):
            assert flat.tobytes() == first.tobytes()
            assert flat[-5:].tolist() == [ranks] * 5
            assert not flat[204:208].any() and not flat[215:216].any()


@pytest.mark.parametrize("name", METHODS)
def test_float32_and_repetition(name: str) -> None:
    once, again = train(METHODS[name], 3, dtype=np.float32), train(METHODS[name], 3, dtype=np.float32)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(once[1][2], again[2][2], strict=True))
    first = train(METHODS[name], 3, steps=1)[0][0][0]
    assert distance(once[0][0][0], first) < 1e-2 if name == "float16" else 1e-4


def undelivered(state: dict[str, Any], factor: float = 1.0) -> list[np.ndarray]:
    found = state.get("residual", {})
    return [found.get(name, np.zeros(size)) * factor for name, size in zip(NAMES, SIZES, strict=True)]


def error_of_conservation(name: str, ranks: int) -> float:
    """How much was lost: delivered and left over, beside what was given."""
    sums, state, _ = train(METHODS[name], ranks)[0]
    factor = 1 / (1 - 0.8) if name == "one bit of momentum" else 1.0
    got = [sum(parts) + rest for *parts, rest in zip(*sums, undelivered(state, factor), strict=True)]
    return distance(got, given(ranks, STEPS))


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", [*FEEDBACK, "one bit of momentum"])
def test_nothing_is_lost(name: str, ranks: int) -> None:
    limit = 0.0 if name in ("top-k", "random-k") else 1e-14  # these only add multiples of 2^-30
    assert error_of_conservation(name, ranks) <= limit


@pytest.mark.parametrize("fault", ["no residual", "no error of the sums", "wrong rank"])
def test_the_check_of_conservation_can_fail(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    get = ParameterState.get
    if fault == "no residual":
        monkeypatch.setattr(ParameterState, "get", lambda self, slot, name, size, dtype: np.zeros(size, dtype))
    elif fault == "no error of the sums":
        monkeypatch.setattr(OneBit, "_pieces", lambda self, bucket, sizes, begin, end, dtype: np.zeros(end - begin))
    else:
        monkeypatch.setattr(ParameterState, "get", lambda *args: get(*args) * (1 + (args[1] == "residual")))
    assert error_of_conservation("one bit", 3) > 1e-3


def test_a_random_element_of_each_part_is_unbiased() -> None:
    method, size, count = RandomK(0.1, error_feedback=False), 103, 10
    hits = np.zeros(size)
    for step in range(4000):
        index, lengths = method._draw("w", step, size, count)
        hits[index] += lengths
    assert np.abs(hits / 4000 - 1).max() < 0.2  # the standard deviation is 0.05
    got = train(lambda: RandomK(0.05, error_feedback=False, smallest=100), 2, steps=1)[0][0][0][0]
    exact = given(2, 1)[0]
    where = np.flatnonzero(got)
    assert set(np.round(got[where] / exact[where], 9)) <= {20.0, 21.0} and where.size == 10


def test_power_iteration_finds_a_matrix_of_low_rank() -> None:
    generator = np.random.default_rng(1)
    whole = generator.normal(size=(40, 2)) @ generator.normal(size=(2, 30))
    q = orthonormal(generator.normal(size=(30, 2)))
    p = orthonormal(whole @ q)
    np.testing.assert_allclose(p @ (p.T @ whole), whole, atol=1e-12)
    dependent = orthonormal(np.repeat(whole[:, :1], 3, axis=1))
    assert np.allclose(dependent.T @ dependent, np.diag([1, 0, 0]))
    assert np.isnan(orthonormal(np.array([[1.0], [np.nan]]))).any()


def test_factors_of_zeros_are_drawn_again() -> None:
    """A matrix without a gradient makes Q zero, which would stay zero."""

    def program() -> Any:
        method, group, results = PowerSGD(rank=2), cc.world(), []
        for scale in (0.0, 1.0):
            bucket = bucket_of([scale * g for g in gradients(group.index, 0)])
            finish(method.reduce(bucket, group))
            results.append(float(np.abs(bucket.parts()[0]).max()))
        return results

    first, second = cc.run(program, 2)[0]
    assert first == 0 and second > 0.1


def test_small_gradients_do_not_underflow() -> None:
    def program() -> Any:
        method, group, results = PowerSGD(rank=1), cc.world(), []
        for _ in range(3):
            bucket = bucket_of([1e-30 * g for g in gradients(group.index, 0)], dtype=np.float32)
            finish(method.reduce(bucket, group))
            results.append(float(np.abs(bucket.parts()[0]).max()))
        return results

    assert min(cc.run(program, 2)[0]) > 1e-31


# -- bytes -------------------------------------------------------------------------------------------------------------


def formula(name: str, n: int, f: int, d: int, p: int, s: int) -> float:
    """The bytes that the docs of the module state, for blocks of 50 and the shapes of these tests."""
    q = (p - 1) / p
    flags, dense = 2 * q * f * s, 2 * q * d * s
    k = round(0.05 * SIZES[0]) + round(0.05 * SIZES[2])
    if name == "float16":
        return 2 * q * 2 * n + flags
    if name.startswith(("int8", "one bit")):
        return 2 * q * (n / (1 if name.startswith("int8") else 8) + 4 * n / 50) + flags
    if name.startswith("top-k"):
        return q * p * k * (4 + s) + dense + flags
    if name.startswith("random-k"):
        return 2 * q * k * s + dense + flags
    rank = 1 if name.endswith("1") else 2
    return 2 * q * rank * (12 + 17 + 9 + 15) * s + dense + flags


@pytest.mark.parametrize("ranks", [2, 5])
@pytest.mark.parametrize("name", METHODS)
def test_bytes_are_those_of_the_formulas(name: str, ranks: int) -> None:
    def program() -> Any:
        group, method, seen = cc.world(), METHODS[name](), []

        def observer(group: Any, request: Any, started: bool, run: Any) -> Any:
            seen.append(request)
            return run()

        bucket = bucket_of(gradients(group.index, 0), dtype=np.float32)
        with observing(observer):
            finish(method.reduce(bucket, group))
        sent = 0.0
        for request in seen:
            if request.call == "all_reduce":  # a ring sends every element but a rank's share, twice
                sent += 2 * request.x.nbytes * (ranks - 1) / ranks
            elif request.call == "all_to_all":
                sent += request.x.nbytes - request.counts[group.index] * request.x.itemsize
            else:  # a ring passes on every part but that of the next rank
                assert request.call == "all_gather"
                sent += (sum(request.counts) - request.counts[(group.index + 1) % ranks]) * request.x.itemsize
        return sent, [(r.call, whole_bytes(r, group.index, ranks)) for r in seen]

    results, method = cc.run(program, ranks), METHODS[name]()
    sent = sum(sent for sent, _ in results) / ranks
    assert sent == pytest.approx(method.bytes_sent(SHAPES, ranks), abs=1e-6)
    dense = sum(SIZES) - SIZES[0] - SIZES[2]
    # the parts of parameters that are shorter than a block, and shares, have scales of their own: up to 25 % here
    tolerance = 0.4 if name.startswith(("int8", "one bit")) else 1e-9
    assert sent == pytest.approx(formula(name, sum(SIZES), 5, dense, ranks, 4), rel=tolerance)
    for rank, (_, seen) in enumerate(results):
        stated = method._requests(SHAPES, ranks, np.dtype(np.float32), rank)
        assert sorted(seen) == sorted((r.call, whole_bytes(r, rank, ranks)) for r in stated)


@pytest.mark.parametrize("make, factor", [(Int8, 4), (OneBit, 32), (Float16, 2), (lambda: RandomK(0.01), 100)])
def test_large_parameters_are_within_5_percent_of_the_factor(make: Make, factor: float) -> None:
    assert make().compression_ratio([(1000, 1000)], 4) == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("given", ["shapes", "zeros"])
def test_dry_run_makes_the_same_requests(name: str, given: str) -> None:
    seen: list[Any] = []
    group = DryCommunicator(1, tuple(range(1024)), "dp", lambda group, request: seen.append(request))
    method, bucket = METHODS[name](), bucket_of(gradients(0, 0), dtype=np.float32)
    if given == "shapes":
        bucket.flat = Shaped(bucket.flat.shape, np.float32, DRY)
    finish(method.reduce(bucket, group))
    sent = sum((2 if r.call == "all_reduce" else 1) * whole_bytes(r, 1, 1024) for r in seen) * 1023 / 1024
    assert sent == pytest.approx(method.bytes_sent(SHAPES, 1024))


# -- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FEEDBACK)
def test_other_ranks_continue_from_a_saved_state(name: str) -> None:
    """3 ranks, then 2, then 5: what was delivered and what is left over is what was given."""
    total = [np.zeros(size) for size in SIZES]
    expected, state = total, None
    for k, ranks in enumerate((3, 2, 5)):
        results = train(METHODS[name], ranks, state=state, start=STEPS * k)
        sums, state, _ = results[0]
        for _, other, _ in results:
            for slot in state:
                assert slot == "method" or all(np.array_equal(other[slot][n], state[slot][n]) for n in state[slot])
        total = [a + sum(parts) for a, *parts in zip(total, *sums, strict=True)]
        expected = [a + b for a, b in zip(expected, given(ranks, STEPS, STEPS * k), strict=True)]
        assert state["steps"]["weight"] == STEPS * (k + 1)
    assert distance([a + b for a, b in zip(total, undelivered(state), strict=True)], expected) < 1e-13


@pytest.mark.parametrize("ranks", [3])
@pytest.mark.parametrize("name", FEEDBACK)
def test_buckets_may_change(name: str, ranks: int) -> None:
    """State belongs to parameters: with other buckets at each step nothing is lost either."""
    layouts = [[[0, 1, 2, 3, 4]], [[4, 2], [3, 1, 0]], [[0], [1], [2], [3, 4]], [[1, 0, 4, 3, 2]]]
    sums, state, _ = train(METHODS[name], ranks, chosen=lambda step: layouts[step])[0]
    got = [sum(parts) + rest for *parts, rest in zip(*sums, undelivered(state), strict=True)]
    assert distance(got, given(ranks, STEPS)) < 1e-14


@pytest.mark.parametrize("name", METHODS)
def test_unused_parameters(name: str) -> None:
    """Used nowhere: zeros, a flag of 0, and the state as before. Used on some ranks: the others add zeros."""

    def program(skip: bool) -> Any:
        group, method = cc.world(), METHODS[name]()
        rank, found = group.index, []
        for step in range(3):
            parts, used = gradients(rank, step), [1] * 5
            if step == 1:
                parts[0], used[0] = np.zeros(SIZES[0]), 0
                if rank:
                    parts[1], used[1] = np.zeros(SIZES[1]), 0
                if skip:
                    chosen = [1, 2, 3, 4]
                    bucket = bucket_of(parts, chosen, used=used)
                    finish(method.reduce(bucket, group))
                    continue
            bucket = bucket_of(parts, used=used)
            finish(method.reduce(bucket, group))
            if step == 1:
                assert bucket.flags.tolist() == [0, 1, 3, 3, 3] and not bucket.parts()[0].any()
            found.append(sums_of(bucket))
        return found[-1], method.state_dict(group)

    sums, state = cc.run(lambda: program(False), 3)[0]
    without, _ = cc.run(lambda: program(True), 3)[0]
    if name not in ("random-k", "random-k with momentum"):  # which counts the step, and draws other elements
        if name.startswith(("top-k", "PowerSGD")):  # elsewhere the shares of the ranks depend on the bucket
            assert distance([sums[0]], [without[0]]) < 1e-14
    if name in FEEDBACK:
        assert np.isfinite(state["residual"]["weight"]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", METHODS)
def test_values_that_are_not_finite_are_seen_once(name: str, bad: float) -> None:
    """One element on one rank: the sum of its parameter is not finite on any rank, and the next step is as without."""

    def program(poison: bool) -> Any:
        group, method, found = cc.world(), METHODS[name](), []
        for step in range(3):
            parts = gradients(group.index, step)
            if step == 1 and poison and group.index == 1:
                parts[0][7] = bad
            bucket = bucket_of(parts)
            finish(method.reduce(bucket, group))
            found.append((sums_of(bucket), {slot: dict(kept) for slot, kept in method.state.slots.items()}))
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        poisoned = cc.run(lambda: program(True), 3)
    clean = cc.run(lambda: program(False), 3)
    for rank, steps in enumerate(poisoned):
        sums, state = steps[1]
        assert not np.isfinite(sums[0]).all() and all(np.isfinite(x).all() for x in sums[1:])
        for slot, kept in state.items():  # as after the first step
            before = clean[rank][0][1][slot]
            assert "weight" not in kept or np.array_equal(kept["weight"], before["weight"]), slot
        assert all(np.isfinite(x).all() for x in steps[2][0])


@pytest.mark.parametrize("name", METHODS)
def test_exact_before_the_start(name: str) -> None:
    def program() -> Any:
        group, method, same = cc.world(), METHODS[name](), []
        method.start_step = 2
        for step in range(3):
            bucket = bucket_of(gradients(group.index, step), dtype=np.float32)
            exact = group.all_reduce(bucket.flat.copy())
            assert method.is_exact(bucket.names) == (step < 2)
            finish(method.reduce(bucket, group))
            same.append(bucket.flat.tobytes() == exact.tobytes())
        return same

    first = not name.endswith("with momentum")  # these deliver the velocity
    assert cc.run(program, 3) == [[True, first, False]] * 3


def test_velocity_before_the_start() -> None:
    """The exact steps of momentum correction are those of SGD with momentum."""
    sums, _, _ = train(lambda: TopK(0.05, momentum=0.9, smallest=100, start_step=3), 3, steps=3)[0]
    velocity = [np.zeros(size) for size in SIZES]
    for step in range(3):
        velocity = [0.9 * v + g for v, g in zip(velocity, given(3, 1, step), strict=True)]
        assert distance(sums[step], velocity) < 1e-14


def test_float16_buckets() -> None:
    for name, make in METHODS.items():
        results = train(make, 3, steps=2, dtype=np.float16)
        serial = make_reference(name, 3)
        expected = serial.step([gradients(r, 0) for r in range(3)])
        assert distance(results[0][0][0], expected) < 2e-2, name
        assert results[1][2][-1].tobytes() == results[0][2][-1].tobytes()


def test_a_sum_above_the_largest_float16_is_infinite() -> None:
    def program() -> Any:
        bucket = bucket_of([np.full(size, 40000.0) for size in SIZES], dtype=np.float32)
        finish(Float16().reduce(bucket, cc.world()))
        return bucket.parts()[0]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(cc.run(program, 2)[0]).all()


def test_buckets_of_few_elements() -> None:
    """Fewer elements than ranks: some ranks own nothing."""
    for name, make in METHODS.items():
        sums, _, flats = train(make, 5, steps=1, chosen=lambda step: [[4], [3], [1, 3], [0], [2]])[0]
        assert all(np.isfinite(x).all() for x in sums[0]), name
        assert flats[0][-1] == 5 and len(flats) == 5


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, error",
    [
        (lambda: TopK(0.0), OptionError),
        (lambda: TopK(1.5), OptionError),
        (lambda: TopK(-1), OptionError),
        (lambda: TopK("1 %"), ArgumentError),
        (lambda: TopK(0.1, momentum=1.0), OptionError),
        (lambda: RandomK(float("nan")), OptionError),
        (lambda: RandomK(0.1, momentum=0.9, error_feedback=False), OptionError),
        (lambda: PowerSGD(rank=0), OptionError),
        (lambda: PowerSGD(rank=1.5), ArgumentError),
        (lambda: OneBit(block=0), OptionError),
        (lambda: OneBit(momentum=1.0), OptionError),
        (lambda: Int8(start_step=-1), OptionError),
        (lambda: RandomK(seed="a"), DtypeError),
    ],
)
def test_wrong_options(make: Make, error: type[Exception]) -> None:
    with pytest.raises(error, match="given; needed|must be"):
        make()


def test_wrong_states_and_buckets() -> None:
    group = cc.world()
    state = TopK().state_dict(group)
    with pytest.raises(OptionError, match="state of 'TopK'"):
        PowerSGD().load_state_dict(state, group)
    del state["steps"]
    with pytest.raises(OptionError, match="needed"):
        TopK().load_state_dict(state, group)
    method = TopK(smallest=1)
    method.state.slots["residual"]["bias"] = np.zeros(3)
    with pytest.raises(ShapeError, match="'bias' has 3 elements; needed: 7"):
        finish(method.reduce(bucket_of(gradients(0, 0)), group))
    for make in (OneBit, Int8, TopK, RandomK, PowerSGD, Float16):
        for dtype in (np.longdouble, np.clongdouble):
            with pytest.raises(DtypeError, match=str(np.dtype(np.longdouble))):
                finish(make(start_step=1).reduce(bucket_of(gradients(0, 0), dtype=dtype), group))


# -- training ----------------------------------------------------------------------------------------------------------


def model_and_rows(rows: int = 12) -> tuple[nn.Module, np.ndarray, np.ndarray]:
    random.seed(5)
    generator = np.random.default_rng(2)
    model = nn.Sequential(nn.Linear(6, 8, dtype=float), nn.Tanh(), nn.Linear(8, 3, dtype=float))
    return model, generator.normal(size=(rows, 6)), generator.integers(0, 3, rows)


def train_model(ranks: int, reduction: Any, make_optimizer: Any, steps: int, **sizes: int) -> list[Any]:
    """On each rank: the parameters after each step."""

    def program() -> Any:
        with cc.Mesh(dp=-1):
            module, x, y = model_and_rows()
            method = reduction()
            model = DataParallel(module, "dp", reduction=method, **sizes)
            optimizer, found = make_optimizer(model, method), []
            for _ in range(steps):
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    xs, ys = (cc.shard(ag.tensor(a, layout={"dp": cc.R}), "dp") for a in (x, y))
                    loss = nn.cross_entropy(model(xs), ys, reduction="sum") / 12
                    loss = cc.all_reduce(loss, "dp", to=cc.I)
                tape.backward(loss)
                optimizer.step()
                found.append([p.numpy().copy() for p in model.parameters()])
            return found

    return cc.run(program, ranks)


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_elements_sent_is_exact_training(ranks: int) -> None:
    """Top-k and random-k of all elements, and a rank that nothing is gained from, give the gradient."""

    def sgd(model: Any, method: Any) -> Any:
        return optim.SGD(model.parameters(), lr=0.5)

    exact = train_model(ranks, lambda: None, sgd, 5)
    for make in (lambda: TopK(1.0, smallest=0), lambda: RandomK(1.0, smallest=0), lambda: PowerSGD(rank=100)):
        for a, b in zip(train_model(ranks, make, sgd, 5, bucket_bytes=300)[0], exact[0], strict=True):
            assert distance(a, b) < 1e-12


def serial_one_bit_adam(ranks: int, start: int, steps: int) -> list[list[np.ndarray]]:
    """1-bit Adam (Tang et al. 2021, algorithm 1) over the gradients of all ranks, with bias correction, on one rank.

    Each parameter is compressed on its own here, as in the program, whose buckets hold one parameter each.
    """
    module, x, y = model_and_rows()
    parameters, parts = module.parameters(), np.array_split(np.arange(12), ranks)
    b1, b2, eps, lr = 0.9, 0.99, 1e-8, 0.01
    states = [reference.Quantised([p.size], ranks, reference.sign_rule, 2048, True) for p in parameters]
    m, v, found = [np.zeros(p.shape) for p in parameters], [np.zeros(p.shape) for p in parameters], []
    for t in range(1, steps + 1):
        by_rank = []
        for part in parts:
            for p in parameters:
                p.grad = None
            with ag.Tape() as tape:
                loss = nn.cross_entropy(module(ag.tensor(x[part])), ag.tensor(y[part]), reduction="sum") / 12
            tape.backward(loss)
            by_rank.append([p.grad.numpy().copy() for p in parameters])
        for i, p in enumerate(parameters):
            gs = [g[i] for g in by_rank]
            if t <= start:
                m[i] = b1 * m[i] + (1 - b1) * np.sum(gs, axis=0)
                v[i] = b2 * v[i] + (1 - b2) * np.sum(gs, axis=0) ** 2
            else:
                moments = [(b1 * m[i] / ranks + (1 - b1) * g).ravel() for g in gs]
                m[i] = states[i].step([[moment] for moment in moments])[0].reshape(p.shape)
            c2 = 1 - b2 ** min(t, start)
            p.array[...] -= lr * (m[i] / (1 - b1**t)) / (np.sqrt(v[i] / c2) + eps)
        found.append([p.numpy().copy() for p in parameters])
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_one_bit_adam_equals_the_serial_algorithm(ranks: int) -> None:
    start, steps = 4, 9

    def make_optimizer(model: Any, method: Any) -> Any:
        return CompressedAdam(model.parameters(), method, lr=0.01, betas=(0.9, 0.99), variance_floor=0.0)

    def reduction() -> OneBit:
        return OneBit(momentum=0.9, start_step=start)

    results = train_model(ranks, reduction, make_optimizer, steps, bucket_bytes=0, first_bucket_bytes=0)
    for step, (got, expected) in enumerate(zip(results[0], serial_one_bit_adam(ranks, start, steps), strict=True)):
        assert distance(got, expected) < 1e-10, step
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(other[-1], results[0][-1], strict=True))


def test_compressed_adam_refuses_what_it_cannot_use() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(OptionError, match=r"fix: OneBit\(momentum=0.9"):
        CompressedAdam(model.parameters(), OneBit(momentum=0.5, start_step=9))
    with pytest.raises(OptionError, match="start_step=0 was given; needed: at least 1"):
        CompressedAdam(model.parameters(), TopK())
    with pytest.raises(ArgumentError, match="needed: the Compression"):
        CompressedAdam(model.parameters(), "top-k")  # type: ignore[arg-type]


def test_elements_without_a_gradient_stay_in_place() -> None:
    """A sign is never zero. The floor keeps the step of an element whose variance is zero below that of the others."""
    parameter = ag.Parameter(np.zeros(4))
    parameter.name = "w"
    method = OneBit(momentum=0.9, start_step=1)
    optimizer = CompressedAdam([parameter], method, lr=1.0)
    parameter.grad = ag.tensor([0.0, 1.0, 1.0, 1.0])
    optimizer.step()
    before = parameter.numpy().copy()
    method.state.advance(["w"], True)
    parameter.grad = ag.tensor([0.1, 1.0, 1.0, 1.0])
    optimizer.step()
    assert np.abs(parameter.numpy() - before)[0] < 5


def test_over_mpi() -> None:
    program = str(Path(__file__).parent / "programs" / "compression_program.py")
    outcome = launch_command([program], 3, limit_s=60, OPENBLAS_NUM_THREADS="1")
    assert outcome.code == 0 and "all equal to threads" in outcome.out, outcome.out + outcome.err
