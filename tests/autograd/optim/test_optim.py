"""Optimizers beside torch's, schedules, clipping; LARS and LAMB beside their papers' formulas written out."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.errors import LayoutError, RingtapeError, ShapeError
from autograd.kernels.momentum import LEAST
from autograd.layouts.layout import I, P, R, Shard, V
from autograd.optim import schedules
from autograd.optim.norms import local_norm

from ..halves import HALVES
from ..nn.torch_side import close, reference

OPTIMIZERS: dict[str, Any] = {
    "SGD": (optim.SGD, {"lr": 0.1}),
    "SGD, momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "SGD, dampening": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "SGD, nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.02}),
    "Adam": (optim.Adam, {"lr": 0.05}),
    "Adam, everything": (optim.Adam, {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    "AdamW": (optim.AdamW, {"lr": 0.05}),
    "AdamW, everything": (optim.AdamW, {"lr": 0.05, "betas": (0.7, 0.9), "eps": 1e-4, "weight_decay": 0.3}),
    "Adagrad": (optim.Adagrad, {"lr": 0.1}),
    "Adagrad, everything": (optim.Adagrad, {
        "lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.05, "initial_accumulator_value": 0.3, "eps": 1e-3,
    }),
    "RMSprop": (optim.RMSprop, {"lr": 0.02}),
    "RMSprop, momentum": (optim.RMSprop, {"lr": 0.02, "alpha": 0.9, "momentum": 0.8, "weight_decay": 0.1}),
    "RMSprop, centered": (optim.RMSprop, {"lr": 0.02, "alpha": 0.8, "centered": True, "eps": 1e-3}),
    "RMSprop, everything": (optim.RMSprop, {"lr": 0.02, "alpha": 0.7, "centered": True, "momentum": 0.5}),
    "SGD, maximize": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "maximize": True}),
    "SGD, maximize and nesterov": (optim.SGD, {
        "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.02, "maximize": True,
    }),
    "Adam, amsgrad": (optim.Adam, {"lr": 0.05, "betas": (0.8, 0.6), "weight_decay": 0.1, "amsgrad": True}),
    "Adam, maximize": (optim.Adam, {"lr": 0.05, "maximize": True}),
    "AdamW, amsgrad and maximize": (optim.AdamW, {
        "lr": 0.05, "betas": (0.7, 0.5), "weight_decay": 0.3, "amsgrad": True, "maximize": True,
    }),
    # with 0.1 a weight of the complex problem oscillates, and roundings grow threefold in each step
    "Adagrad, maximize": (optim.Adagrad, {"lr": 0.03, "weight_decay": 0.05, "maximize": True}),
    "RMSprop, maximize": (optim.RMSprop, {"lr": 0.02, "momentum": 0.5, "centered": True, "maximize": True}),
}  # fmt: skip


def give(p: ag.Parameter, gradient: Any) -> None:
    p.grad = None
    if gradient is not None:
        p.accumulate(numpy.asarray(gradient))


@pytest.mark.parametrize("again", [False, True], ids=["", "interrupted"])
@pytest.mark.parametrize("strided", [False, True], ids=["", "strided"])
@pytest.mark.parametrize("entry", OPTIMIZERS)
def test_an_optimizer_is_torchs(entry: str, strided: bool, again: bool) -> None:
    make, words = OPTIMIZERS[entry]
    found = reference(entry)
    ps = [ag.Parameter(found[f"start/{i}"]) for i in range(3)]
    if strided:  # not what the kernels take
        ps[0].array = numpy.asfortranarray(ps[0].array)
    optimizer = make(ps, **words)
    for step in range(6):
        for i, p in enumerate(ps):
            give(p, None if step == 2 and i == 1 else found[f"grad/{step}/{i}"])
        if again and step == 3:  # another process goes on
            state = optimizer.state_dict()
            ps = [ag.Parameter(p.array) for p in ps]
            for i, p in enumerate(ps):
                give(p, found[f"grad/{step}/{i}"])
            optimizer = make(ps, **words)
            optimizer.load_state_dict(state)
        optimizer.step()
        for i, p in enumerate(ps):
            close(p.numpy(), found[f"value/{step}/{i}"], f"{entry}: parameter {i} after step {step}", 1e-12)


SCHEDULES: dict[str, Any] = {
    "step_lr": schedules.step_lr(0.4, 3, 0.5),
    "multi_step_lr": schedules.multi_step_lr(0.4, [2, 5, 5, 9], 0.5),
    "exponential_lr": schedules.exponential_lr(0.4, 0.9),
    "linear_lr": schedules.linear_lr(0.4, 0.25, 0.75, 6),
    "cosine_annealing_lr": schedules.cosine_annealing_lr(0.4, 8, 0.01),
    "sequential_lr": schedules.sequential_lr(
        [schedules.linear_lr(0.4, 0.1, 1.0, 4), schedules.cosine_annealing_lr(0.4, 8)], [4]
    ),
    "chained_lr": schedules.chained_lr(
        0.4, [schedules.linear_lr(0.4, 0.1, 1.0, 4), schedules.exponential_lr(0.4, 0.9)]
    ),
    "cosine_annealing_warm_restarts": schedules.cosine_annealing_warm_restarts(0.4, 2, 2, 0.01),
    "lambda_lr": schedules.lambda_lr(0.4, lambda step: 1 / (1 + step)),
    "one_cycle_lr": schedules.one_cycle_lr(0.4, 12),
    "one_cycle_lr, linear": schedules.one_cycle_lr(
        0.4, 12, pct_start=0.4, anneal_strategy="linear", div_factor=10.0, final_div_factor=100.0
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_torchs(name: str) -> None:
    wanted = reference("schedule")[name]
    w = ag.Parameter([0.0])
    optimizer = optim.SGD([w], lr=SCHEDULES[name])
    used = []
    for _ in wanted:
        give(w, [1.0])
        before = w.numpy()[0]
        optimizer.step()
        used.append(before - w.numpy()[0])
        assert math.isclose(optimizer.lr, used[-1], rel_tol=1e-9)
    numpy.testing.assert_allclose(used, wanted, rtol=1e-9, atol=1e-12)


def test_schedules_that_make_no_sense() -> None:
    for call in (
        lambda: schedules.linear_lr(1.0, total_iters=0), lambda: schedules.step_lr(1.0, 0),
        lambda: schedules.cosine_annealing_lr(1.0, 0), lambda: schedules.warmup_cosine(1.0, 5, 5),
        lambda: schedules.sequential_lr([schedules.constant_lr(1.0)], [3]),
    ):  # fmt: skip
        with pytest.raises(RingtapeError, match="needed"):
            call()


def test_amsgrad_and_maximize_of_one_group() -> None:
    """Written out: the largest second average, upwards in one group only; another optimizer goes on from the state."""
    rng = numpy.random.default_rng(3)
    start = [rng.standard_normal((4, 3)) for _ in range(2)]
    gradients = [[rng.standard_normal((4, 3)) * 3.0 ** -t for t in range(6)] for _ in range(2)]  # v falls: v < largest

    def made(values: list[Any]) -> Any:
        ps = [ag.Parameter(x, name=f"p{i}") for i, x in enumerate(values)]
        groups = [{"params": [ps[0]], "amsgrad": True, "maximize": True}, {"params": [ps[1]]}]
        return ps, optim.Adam(groups, lr=0.1, betas=(0.8, 0.5))

    ps, optimizer = made(start)
    for t in range(6):
        if t == 3:
            state = optimizer.state_dict()
            assert sorted(state) == ["counts", "first", "groups", "largest", "lr", "names", "second", "steps"]
            ps, optimizer = made([p.numpy() for p in ps])
            optimizer.load_state_dict(state)
        for p, g in zip(ps, gradients, strict=True):
            give(p, g[t])
        optimizer.step()
    for i, p in enumerate(ps):
        x, m, v, largest = start[i], 0.0, 0.0, 0.0
        for t, g in enumerate(gradients[i], 1):
            g = -g if i == 0 else g
            m, v = 0.8 * m + 0.2 * g, 0.5 * v + 0.5 * g * g
            largest = numpy.maximum(largest, v)
            used = largest if i == 0 else v
            x = x - 0.1 * (m / (1 - 0.8**t)) / (numpy.sqrt(used / (1 - 0.5**t)) + 1e-8)
        numpy.testing.assert_allclose(p.numpy(), x, rtol=1e-12)
    plain = optim.Adam([ag.Parameter([1.0])])
    assert "largest" not in plain.state_dict(), "the state of files that were saved without it"


# -- large batches: the papers' formulas, written out ---------------------------------------------------------------


def test_lars_is_its_papers() -> None:
    rng = numpy.random.default_rng(0)
    w, other = rng.standard_normal((4, 3)), numpy.zeros(3)
    ps = [ag.Parameter(w), ag.Parameter(other)]
    optimizer = optim.LARS(ps, lr=0.5, momentum=0.8, weight_decay=0.1, trust=0.02, eps=0.0)
    v, u = numpy.zeros_like(w), numpy.zeros_like(other)
    for _ in range(4):
        g, h = rng.standard_normal(w.shape), rng.standard_normal(other.shape)
        for p, gradient in zip(ps, (g, h), strict=True):
            give(p, gradient)
        optimizer.step()
        rate = 0.02 * numpy.linalg.norm(w) / (numpy.linalg.norm(g) + 0.1 * numpy.linalg.norm(w))
        v = 0.8 * v + 0.5 * rate * (g + 0.1 * w)
        w = w - v
        size = numpy.linalg.norm(other)
        rate = 0.02 * size / (numpy.linalg.norm(h) + 0.1 * size) if size else 1.0  # zeros: the plain rate
        u = 0.8 * u + 0.5 * rate * (h + 0.1 * other)
        other = other - u
        numpy.testing.assert_allclose(ps[0].numpy(), w, rtol=1e-12)
        numpy.testing.assert_allclose(ps[1].numpy(), other, rtol=1e-12)


def test_lamb_is_its_papers() -> None:
    rng = numpy.random.default_rng(1)
    x = rng.standard_normal((4, 3))
    p = ag.Parameter(x)
    optimizer = optim.LAMB([p], lr=0.1, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.2)
    m, v = numpy.zeros_like(x), numpy.zeros_like(x)
    for t in range(1, 5):
        g = rng.standard_normal(x.shape)
        give(p, g)
        optimizer.step()
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        r = (m / (1 - 0.8**t)) / (numpy.sqrt(v / (1 - 0.9**t)) + 1e-5) + 0.2 * x
        x = x - 0.1 * numpy.linalg.norm(x) / numpy.linalg.norm(r) * r
        numpy.testing.assert_allclose(p.numpy(), x, rtol=1e-12)


# -- clipping ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_clipping_is_torchs(norm: float, limit: float) -> None:
    found = reference("clip")
    ps = [ag.Parameter(numpy.zeros_like(found[str(i)])) for i in range(2)]
    for i, p in enumerate(ps):
        give(p, found[str(i)].copy())
    total = optim.clip_grad_norm_([*ps, ag.Parameter([1.0])], limit, norm)
    got = numpy.concatenate([[total], *(p.grad.numpy().ravel() for p in ps)])  # type: ignore[union-attr]
    close(got, found[f"{norm}/{limit}"], "clipped", 1e-12)


def test_clipping_by_value() -> None:
    p = ag.Parameter(numpy.zeros(4))
    give(p, [-3.0, -0.1, 0.2, 5.0])
    optim.clip_grad_value_(p, 0.5)
    assert p.grad is not None and p.grad.numpy().tolist() == [-0.5, -0.1, 0.2, 0.5]


def test_norms_of_single_precision_do_not_overflow() -> None:
    p = ag.Parameter(numpy.zeros(200_000, numpy.float32))
    give(p, numpy.full(200_000, 1e30, numpy.float32))
    assert math.isclose(optim.clip_grad_norm_(p, 1.0), 1e30 * math.sqrt(200_000), rel_tol=1e-6)
    assert math.isclose(local_norm([p.grad]), 1.0, rel_tol=1e-5)  # type: ignore[list-item]
    c = ag.Parameter(numpy.zeros(2, complex))
    give(c, [3j, 4.0])
    assert optim.clip_grad_norm_(c, 9.0) == 5.0


def sharded_step(mesh: cc.Mesh, clip: Any) -> Any:
    """Gradients of a sharded and a whole parameter, clipped."""
    place, size = mesh.place[0], mesh.sizes[0]
    a, b = numpy.arange(1.0, 8.0), numpy.arange(3.0)
    w = ag.Parameter(numpy.array_split(a, size)[place], {"dp": Shard(0)}, global_shape=(7,), name="w")
    u = ag.Parameter(b, name="u")
    with ag.Tape() as tape:
        loss = cc.all_reduce((w * w).sum(), "dp", to=I) / 2 + (u * u).sum() / 2
    tape.backward(loss)
    total = clip([w, u])
    return total, w.grad.numpy().tolist(), u.grad.numpy().tolist()  # type: ignore[union-attr]


def over_the_mesh(gradients: Any, norm_type: float) -> float:
    """A norm of order 2 by hand: parts are summed, copies count once."""
    total = 0.0
    for g in gradients:
        square = ag.tensor((g.array * g.array).sum(), {"dp": P if isinstance(g.layout["dp"], Shard) else I})
        total += float((cc.all_reduce(square, "dp", to=I) if square.layout["dp"] is P else square).item())  # type: ignore[index]
    return math.sqrt(total)


@pytest.mark.parametrize("norm", [None, optim.global_norm, over_the_mesh])
def test_clipping_on_a_mesh_by_the_norm_of_the_whole(norm: Any) -> None:
    def program() -> Any:
        with cc.Mesh(dp=3) as mesh:
            return sharded_step(mesh, lambda ps: optim.clip_grad_norm_(ps, 1.0, norm=norm))

    found = cc.run(program, 3)
    norm = math.sqrt(sum(n * n for n in range(1, 8)) + 5.0)
    for total, _, u in found:
        assert math.isclose(total, norm, rel_tol=1e-12)
        numpy.testing.assert_allclose(u, numpy.arange(3.0) / norm, rtol=1e-5)
    numpy.testing.assert_allclose(sum((w for _, w, _ in found), []), numpy.arange(1.0, 8.0) / norm, rtol=1e-5)


@pytest.mark.parametrize("clip", [lambda p: optim.clip_grad_norm_(p, 1.0), lambda p: optim.clip_grad_value_(p, 1.0)])
def test_partial_gradients_are_not_clipped(clip: Any) -> None:
    """horovod#1346: clipped before the reduction."""
    with cc.Mesh(dp=1):
        w = ag.Parameter([3.0, 4.0], {"dp": R}, name="w")
        with ag.Tape() as tape:
            loss = cc.all_reduce((w * ag.tensor([1.0, 2.0])).sum(), "dp", to=I)
        tape.backward(loss)
        with pytest.raises(LayoutError) as error:
            clip(w)
    for word in ("w.grad: f64[2] {dp: P}", "axis 'dp'", "Partial", "cast(w, 'dp', to=R)", "test_optim.py:"):
        assert word in str(error.value)


@pytest.mark.parametrize("make", [lambda p: optim.LARS(p, 0.1), lambda p: optim.LAMB(p)])
def test_parts_have_no_norm_of_their_own(make: Any) -> None:
    with cc.Mesh(dp=1):
        w = ag.Parameter([3.0, 4.0], {"dp": V}, name="w")
        give(w, [1.0, 1.0])
        with pytest.raises(LayoutError, match="fix: norm="):
            make([w]).step()


# -- their state -------------------------------------------------------------------------------------------------------


def test_states_that_do_not_fit() -> None:
    p = ag.Parameter([1.0, 2.0])
    give(p, [1.0, 1.0])
    adam = optim.Adam([p])
    adam.step()
    with pytest.raises(ShapeError, match="needed"):
        optim.SGD([p], 0.1).load_state_dict(adam.state_dict())
    with pytest.raises(ShapeError, match="first of parameter 0 has shape"):
        optim.Adam([ag.Parameter([1.0])]).load_state_dict(adam.state_dict())
    with pytest.raises(RingtapeError, match="nesterov"):
        optim.SGD([p], 0.1, nesterov=True)


def test_all_of_them_train_a_model() -> None:
    rng = numpy.random.default_rng(0)
    x = rng.standard_normal((64, 5))
    y = (x @ rng.standard_normal((5, 3))).argmax(axis=1)
    for make in (
        lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True), lambda p: optim.Adam(p, 0.02),
        lambda p: optim.AdamW(p, schedules.warmup_cosine(0.05, 5, 60)), lambda p: optim.LARS(p, 5.0, trust=0.02),
        lambda p: optim.LAMB(p, 0.02),
    ):  # fmt: skip
        random.seed(0)
        model = nn.Sequential(nn.Linear(5, 16, dtype=float), nn.Tanh(), nn.Linear(16, 3, dtype=float))
        optimizer, losses = make(model.parameters()), []
        for _ in range(60):
            model.zero_grad()
            with ag.Tape() as tape:
                loss = nn.CrossEntropyLoss()(model(x), y)
            tape.backward(loss)
            optim.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.75 * losses[0], (make, losses[0], losses[-1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sgd_of_small_parameters_together_is_sgd(dtype: str) -> None:
    rng = numpy.random.default_rng(4)
    arrays = [rng.normal(size=shape).astype(dtype) for shape in ((5, 7), (7,), (3, 1, 2))]
    parameters = [ag.Parameter(x) for x in arrays]
    optimizer = optim.SGD(parameters, lr=0.1, momentum=0.9)
    expected, velocities = [x.astype(float) for x in arrays], [numpy.zeros(x.shape) for x in arrays]
    for _ in range(4):
        for i, p in enumerate(parameters):
            g = rng.normal(size=p.shape).astype(dtype)
            p.grad = ag.tensor(g)
            velocities[i] = 0.9 * velocities[i] + g
            expected[i] = expected[i] - 0.1 * velocities[i]
        optimizer.step()
        for p, e in zip(parameters, expected, strict=True):
            assert abs(p.numpy() - e).max() <= 20 * numpy.finfo(dtype).eps * abs(e).max()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("large", ["whole", "transposed", "replaced"])
def test_sgd_of_a_large_parameter_is_sgd(dtype: str, large: str) -> None:
    """A large parameter is updated by a compiled loop; NumPy does it where the arrays do not suit, or without Numba."""
    rng = numpy.random.default_rng(3)
    shape = (129, 160)
    assert shape[0] * shape[1] > LEAST
    w = ag.Parameter(rng.normal(size=shape).astype(dtype))
    if large == "transposed":
        w.array = numpy.asfortranarray(w.array)
    optimizer = optim.SGD([w], lr=0.1, momentum=0.9)
    expected, v = w.numpy().astype(float), numpy.zeros(shape)
    for step in range(5):
        if large == "replaced" and step == 2:
            w.data = expected = rng.normal(size=shape).astype(dtype).astype(float)
        g = rng.normal(size=shape).astype(dtype)
        w.grad = ag.tensor(g.copy())
        optimizer.step()
        v = 0.9 * v + g
        expected = expected - 0.1 * v
        assert abs(w.numpy() - expected).max() <= 20 * numpy.finfo(dtype).eps * abs(expected).max()
        assert numpy.array_equal(w.grad.numpy(), g)


def test_linear_scaling() -> None:
    rate = schedules.linear_scaling(0.1, 256, 1024, 4)
    assert [rate(step) for step in range(7)] == pytest.approx([0.1, 0.175, 0.25, 0.325, 0.4, 0.4, 0.4])
    assert schedules.linear_scaling(0.1, 256, 64)(0) == pytest.approx(0.025)
    then = schedules.linear_scaling(0.1, 1, 2, 2, after=lambda lr: schedules.step_lr(lr, 1, 0.5))
    assert [then(step) for step in range(5)] == pytest.approx([0.1, 0.15, 0.2, 0.1, 0.05])

    def program() -> None:
        with cc.Mesh(dp=2):
            schedules.linear_scaling(0.1, 1, cc.from_local(numpy.ones(3), {"dp": Shard(0)}).shape[0])

    with pytest.raises(LayoutError, match="linear_scaling.batch=.*\n.*it depends on the rank"):
        cc.run(program, 2)
    for wrong in ({"base_lr": math.nan}, {"base_batch": 0}, {"batch": 0}, {"warmup_steps": -1}):
        with pytest.raises(RingtapeError, match="linear_scaling"):
            schedules.linear_scaling(**({"base_lr": 0.1, "base_batch": 1, "batch": 1} | wrong))


# -- 16 bits: the updates and the state are of float32, and the parameters are rounded --------------------------------
IN_16_BITS = {
    **OPTIMIZERS, "LARS": (optim.LARS, {"lr": 0.1, "trust": 0.1}), "LAMB": (optim.LAMB, {"lr": 0.01}),
    "SGD, small rate": (optim.SGD, {"lr": 1e-8}), "Adam, defaults": (optim.Adam, {}), "LARS, defaults":
    (optim.LARS, {"lr": 1.0}), "RMSprop, defaults": (optim.RMSprop, {}), "Adagrad, defaults": (optim.Adagrad, {}),
}  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", IN_16_BITS)
def test_parameters_of_16_bits_are_float32_ones_that_are_rounded_at_each_step(name: str, dtype: str) -> None:
    """Bitwise, with gradients that are 0, whose squares are 0 in float16, and whose squares overflow there."""
    kind, options = IN_16_BITS[name]
    half = HALVES[dtype]
    rng = numpy.random.default_rng(0)
    starts = [rng.uniform(0.5, 2, shape).astype(numpy.float32).astype(half) for shape in ((5,), (40, 100), (), (3, 2))]
    found = []
    for own in (half, numpy.dtype(numpy.float32)):
        given = [ag.Parameter(start.astype(own)) for start in starts]
        optimizer = kind(given, **options)
        for step in range(1, 5):
            for p in given:
                g = numpy.resize(numpy.array([0, 1e-4, 1, 300, -3e-3, 1e-7]), p.shape) * step
                p.grad = ag.tensor(numpy.asarray(g, numpy.float32).astype(half).astype(own))
            optimizer.step()
            for p in given:
                assert p.array.dtype == own
                if own is not half:
                    p.data = p.numpy().astype(half).astype(own)
        found.append(given)
    for ours, wide in zip(*found, strict=True):
        assert numpy.isfinite(wide.numpy()).all()
        assert numpy.array_equal(ours.numpy().astype(numpy.float32), wide.numpy())


@pytest.mark.parametrize("order", [0.5, 1.0, 2.0, 3.0, 20.0, math.inf])
@pytest.mark.parametrize(("dtype", "largest"), [
    ("float16", 4e4), ("float16", 6e-7), ("float16", 1.0),
    *((("bfloat16", 2e38), ("bfloat16", 1e-30)) if "bfloat16" in HALVES else ()),
    ("float32", 4e12), ("float32", 1e38), ("float32", 1e-38), ("float64", 1e300), ("float64", 1e-200),
])  # fmt: skip
def test_clipping_of_large_and_small_gradients(dtype: str, largest: float, order: float) -> None:
    own = HALVES.get(dtype, dtype)
    g = (numpy.random.default_rng(0).uniform(-1, 1, 50) * largest).astype(own)
    w = ag.Parameter(numpy.zeros(50, numpy.float32).astype(own))
    w.grad = ag.tensor(g)
    exact = g.astype(numpy.longdouble)
    top = numpy.abs(exact).max()
    size = top if order == math.inf else top * numpy.sum(numpy.abs(exact / top) ** order) ** (1 / order)
    bound = float(size) / 1000
    assert optim.clip_grad_norm_([w], bound, order) == pytest.approx(float(size), rel=1e-6)
    clipped = w.grad.numpy().astype(numpy.longdouble)
    ulp, least = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 1e-40), "float32": (1e-6, 1e-45)}.get(
        dtype, (1e-14, 1e-320)
    )
    needed = exact * (bound / (float(size) + 1e-6))
    assert numpy.all(numpy.abs(clipped - needed) <= 2 * ulp * numpy.abs(needed) + least)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "LAMB"])
def test_a_copy_of_an_optimizer_goes_on_as_the_optimizer(name: str) -> None:
    w = ag.Parameter(numpy.arange(1.0, 5.0))
    pairs = [(w, getattr(optim, name)([w], lr=0.1, **{"momentum": 0.9} if name == "SGD" else {}))]
    for i in range(6):
        if i == 3:
            pairs.append(copy.deepcopy(pairs[0]))
        for p, optimizer in pairs:
            p._grad = p.array * 2
            optimizer.step()
    assert (pairs[1][0].array == w.array).all() and pairs[1][0] is not w


class _Halved(optim.SGD):
    def update(self, i: int, p: Any, g: Any) -> None:
        super().update(i, p, 0.5 * g)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_update_of_a_subclass_is_called(momentum: float) -> None:
    """For small parameters with momentum, too, which `SGD` updates together."""
    found = []
    for kind, factor in ((_Halved, 1.0), (optim.SGD, 0.5)):
        w = ag.Parameter(numpy.arange(1.0, 5.0))
        optimizer = kind([w], lr=0.1, momentum=momentum)
        for _ in range(3):
            w._grad = factor * numpy.arange(4.0)
            optimizer.step()
        found.append(w.array)
    numpy.testing.assert_array_equal(*found)


@pytest.mark.parametrize("make", [lambda ps: optim.SGD(ps, 0.1), lambda ps: optim.SGD(ps, 0.1, weight_decay=0.01)])
def test_a_model_that_is_made_double_is_trained_in_double(make: Any) -> None:
    """No array of an earlier step, in another dtype, holds a product of a later one."""
    draw = numpy.random.default_rng(0)
    model = nn.Linear(3, 2)
    optimizer = make(model.parameters())
    for dtype in ("float32", "float64"):
        if dtype == "float64":
            model.double()
        x = draw.standard_normal((4, 3)).astype(dtype)
        with ag.Tape() as tape:
            loss = (model(ag.tensor(x)) ** 2).sum()
        tape.backward(loss)
        expected = [p.array - 0.1 * (p.grad.array + optimizer.weight_decay * p.array) for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    for p, needed in zip(model.parameters(), expected, strict=True):
        numpy.testing.assert_allclose(p.array, needed, rtol=1e-14)
