"""Programs of several ranks: a captured step has the bits of the step itself, or is refused by line and fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from autograd.layouts.layout import I, R, Shard, V
from parallel import (
    Column,
    DataParallel,
    Experts,
    Float16,
    Int8,
    MixtureOfExperts,
    PowerSGD,
    RandomK,
    Ring,
    Row,
    TopK,
    Ulysses,
    enter,
    parallelize,
    side_losses,
)  # fmt: skip

from ..autograd.halves import HALVES
from ..autograd.transforms.test_capture import bits

CALLS = 15  # the 12th is compared with the step itself


@dataclass
class Program:
    """A step that one rank makes, what it trains, and the arguments of its calls."""

    step: Callable[..., Any]
    trained: Any
    given: Callable[[int], tuple[Any, ...]]


Make = Callable[[], Program]
PROGRAMS: dict[str, tuple[Make, dict[str, int], str]] = {}


def program(make: Make, name: str = "", *, refused: str = "", **sizes: int) -> Make:
    """Add a program that runs on a mesh of some sizes, and the words of its refusal."""
    PROGRAMS[name or make.__name__.strip("_").replace("_", " ")] = make, sizes or {"dp": 2}, refused
    return make


def rank_of(axis: str) -> int:
    return int(cc.current_mesh().axis(axis).rank)


def rows(n: int = 6, width: int = 8, axis: str = "dp") -> Callable[[int], tuple[Any, ...]]:
    random = numpy.random.default_rng([rank_of(axis), 5])
    return lambda k: (random.standard_normal((n, width)).astype("float32"), random.integers(0, 4, n))


def network(*between: Any) -> nn.Module:
    ag.random.seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *between, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def loss_of(out: Any, y: Any, on: Any = "dp", n: int = 24) -> Any:
    return cc.all_reduce(nn.cross_entropy(out, ag.tensor(y), reduction="sum"), on, to=I) / n


def training(model: Any, optimizer: Any = None, clip: float = 0.0, given: Any = None, forward: Any = None) -> Program:
    """The usual step of a model."""
    optimizer = optim.SGD(model.parameters(), 0.1, 0.9) if optimizer is None else optimizer

    def step(x: Any, y: Any, *more: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = loss_of(model(ag.tensor(x)) if forward is None else forward(x, *more), y)
        tape.backward(loss)
        if clip:
            optim.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss

    return Program(step, model, rows() if given is None else given)


# -- buckets and stages ------------------------------------------------------------------------------------------------
for _zero in range(4):
    for _bytes in (0, 300, 1 << 20):
        program(lambda z=_zero, b=_bytes: training(DataParallel(network(), "dp", zero=z, bucket_bytes=b), clip=0.2),
                f"ZeRO {_zero} with buckets of {_bytes} bytes", dp=3)
program(lambda: training(DataParallel(network(), "dp", bucket_bytes="measured")), "buckets of measured sizes")
program(lambda: training(DataParallel(network(), "dp", bucket_bytes=0, buffers=2)), "two buffers of a bucket")
REDUCTIONS: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomK(0.3), "largest": lambda: TopK(0.3), "halves": Float16, "bytes": Int8,
    "low rank": lambda: PowerSGD(2),
}  # fmt: skip
for _name, _reduction in REDUCTIONS.items():
    program(lambda r=_reduction: training(DataParallel(network(), "dp", bucket_bytes=300, reduction=r())),
            f"a reduction to {_name}")


def _groups_of_copies(zero: int) -> Program:
    model = DataParallel(network(), "shard", zero=zero, replicate="dp", bucket_bytes=300)
    optimizer = optim.Adam(model.parameters(), 0.01)
    random = numpy.random.default_rng([rank_of("dp"), rank_of("shard")])

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = loss_of(model(ag.tensor(x)), y, ("dp", "shard"))
        tape.backward(loss)
        optim.clip_grad_norm_(model.parameters(), 0.2)
        optimizer.step()
        return loss

    return Program(step, model, lambda k: (random.standard_normal((6, 8)).astype("float32"), random.integers(0, 4, 6)))


for _zero in (2, 3):
    program(lambda z=_zero: _groups_of_copies(z), f"ZeRO {_zero} in groups of copies", dp=2, shard=2)


@program
def _a_frozen_layer() -> Program:
    model = network()
    for p in model[0].parameters():
        p.requires_grad = False
    return training(DataParallel(model, "dp", bucket_bytes=300))


class Heads2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        ag.random.seed(0)
        self.body, self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Any, which: str = "a") -> Any:
        return getattr(self, which)(nn.relu(self.body(x)))


for _zero in range(4):
    program(lambda z=_zero: training(DataParallel(Heads2(), "dp", zero=z, bucket_bytes=0)),
            f"parameters that no rank uses, ZeRO {_zero}")


def _other_heads(zero: int) -> Program:
    model = DataParallel(Heads2(), "dp", zero=zero, bucket_bytes=0)
    return training(model, forward=lambda x: model(ag.tensor(x), "ab"[rank_of("dp") % 2]))


for _zero in (0, 2):
    program(lambda z=_zero: _other_heads(z), f"each rank uses another head, ZeRO {_zero}", dp=3)


@program
def _heads_in_turn() -> Program:
    model = DataParallel(Heads2(), "dp", bucket_bytes=300)
    given = rows()
    return training(model, forward=lambda x, h: model(ag.tensor(x), h), given=lambda k: (*given(k), "abb"[k % 3]))


@program
def _a_model_that_is_called_twice() -> Program:
    model = DataParallel(network(), "dp", bucket_bytes=300)
    return training(model, forward=lambda x: model(ag.tensor(x)) + model(ag.tensor(x * 1.0)) * 0.5)


def _a_layer_that_is_called_twice(zero: int) -> Program:
    ag.random.seed(0)
    a, b = nn.Linear(8, 8), nn.Linear(8, 8)
    return training(DataParallel(nn.Sequential(a, nn.Tanh(), b, nn.Tanh(), a, nn.Linear(8, 4)), "dp", zero=zero))


for _zero in (2, 3):
    program(lambda z=_zero: _a_layer_that_is_called_twice(z), f"a layer that is called twice, ZeRO {_zero}")


@program
def _a_tied_weight() -> Program:
    model = network()
    model[4].weight = model[2].weight = ag.Parameter(model[2].weight.array[:, :16].copy())
    return training(DataParallel(nn.Sequential(*list(model)[:2], model[2], nn.Tanh(), nn.Linear(16, 4)), "dp"))


@program
def _two_models_and_two_optimizers() -> Program:
    a, b = (DataParallel(network(), "dp", zero=z, bucket_bytes=300) for z in (0, 2))
    one, two = optim.Adam(a.parameters(), 0.01), optim.SGD(b.parameters(), 0.1, 0.9)

    def step(x: Any, y: Any) -> Any:
        found = []
        for model, optimizer in ((a, one), (b, two)):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = loss_of(a(ag.tensor(x)) + b(ag.tensor(x)), y)
            tape.backward(loss)
            optimizer.step()
            optim.clip_grad_value_(model.parameters(), 0.1)
            found.append(loss)
        return found

    return Program(step, nn.ModuleList([a, b]), rows())


@program
def _parameters_that_enter_one_by_one() -> Program:
    model = network()
    parameters, optimizer = list(model.parameters()), optim.Adam(model.parameters(), 0.01)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            w, b, v, c, u, d = enter(parameters, "dp")
            h = ag.numpy.tanh(nn.relu(ag.tensor(x) @ w + b) @ v + c)
            loss = loss_of(h @ u + d, y)
        tape.backward(loss)
        optimizer.step()
        return loss

    return Program(step, model, rows())


def _accumulated(zero: int, uneven: bool) -> Program:
    model = DataParallel(network(), "dp", zero=zero, bucket_bytes=300)
    optimizer = optim.Adam(model.parameters(), 0.01)
    n = 3 - (uneven and rank_of("dp") == 1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with model.accumulate():
            for i in range(n):
                with ag.Tape() as tape:
                    out = model(ag.tensor(x[2 * i : 2 * i + 2]))
                    loss = nn.cross_entropy(out, ag.tensor(y[2 * i : 2 * i + 2]), reduction="sum") / 24
                    loss = cc.declare_partial(loss, "dp")
                tape.backward(loss)
        optim.clip_grad_norm_(model.parameters(), 0.2)
        optimizer.step()
        return loss

    return Program(step, model, rows())


for _zero in range(4):
    program(lambda z=_zero: _accumulated(z, False), f"microbatches, ZeRO {_zero}", dp=3)
for _zero in (0, 1, 2):
    program(lambda z=_zero: _accumulated(z, True), f"one microbatch less on a rank, ZeRO {_zero}", dp=3)


def _clipped_by_value(zero: int) -> Program:
    model = DataParallel(network(), "dp", zero=zero)
    optimizer = optim.AdamW(model.parameters(), 0.01)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = loss_of(model(ag.tensor(x)), y)
        tape.backward(loss)
        optim.clip_grad_value_(model.parameters(), 0.05)
        optimizer.step()
        return loss

    return Program(step, model, rows())


for _zero in (0, 2, 3):
    program(lambda z=_zero: _clipped_by_value(z), f"clipped by value, ZeRO {_zero}", dp=3)


# -- numbers of 16 bits ------------------------------------------------------------------------------------------------
def _halves(dtype: Any, zero: int) -> Program:
    model = DataParallel(network().to(dtype), "dp", zero=zero, bucket_bytes=300)
    optimizer = optim.MasterWeights(optim.Adam, model.parameters(), lr=0.01)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = loss_of(model(ag.tensor(x).astype(dtype)).astype("float32"), y)
            scaled = optimizer.scale(loss)
        tape.backward(scaled)
        optim.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        return loss

    return Program(step, model, rows())


for _zero in (0, 2, 3):
    for _half in HALVES:
        program(lambda z=_zero, h=_half: _halves(numpy.dtype(h), z), f"{_half}, ZeRO {_zero}")


# -- other layers ------------------------------------------------------------------------------------------------------
class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.attend, self.down = nn.Linear(8, 24), nn.SelfAttention(4), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.down(self.attend(self.up(x).reshape(*x.shape[:-1], 3, 8)))


def _attention(kind: Any, **options: Any) -> Program:
    ag.random.seed(0)
    model = DataParallel(parallelize(Attention(), {"attend": kind}), ("dp", "cp"), **options)
    optimizer = optim.Adam(model.parameters(), 0.01)
    random = numpy.random.default_rng([rank_of("dp"), rank_of("cp")])

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            out = model(ag.tensor(x, {"cp": Shard(1), "dp": V}))
            loss = cc.all_reduce((out * out).sum(), ("dp", "cp"), to=I) / 100
        tape.backward(loss)
        optim.clip_grad_norm_(model.parameters(), 0.2)
        optimizer.step()
        return loss

    return Program(step, model, lambda k: (random.standard_normal((2, 4, 8)).astype("float32"),))


program(lambda: _attention(Ring("cp", zigzag=False)), "a ring of attention", dp=1, cp=2)
program(lambda: _attention(Ring("cp", zigzag=False), bucket_bytes=0), "a ring of attention and copies", dp=2, cp=2)
program(lambda: _attention(Ulysses("cp")), "attention divided by heads", dp=2, cp=2)


def _tensor_parallel(zero: int) -> Program:
    ag.random.seed(0)
    model: Any = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    model = DataParallel(parallelize(model, {"0": Column("tp"), "2": Row("tp")}), "dp", zero=zero, bucket_bytes=300)
    optimizer = optim.Adam(model.parameters(), 0.01)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            out = model(ag.tensor(x, {"tp": I}))
            loss = cc.all_reduce(nn.cross_entropy(out, ag.tensor(y, {"tp": I}), reduction="sum"), "dp", to=I) / 24
        tape.backward(loss)
        optim.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        return loss

    return Program(step, model, rows())


for _zero in range(4):
    program(lambda z=_zero: _tensor_parallel(z), f"tensor parallelism, ZeRO {_zero}", dp=2, tp=2)


@program
def _batch_norm_of_all_rows() -> Program:
    return training(DataParallel(network(nn.BatchNorm1d(16)), "dp", bucket_bytes=300))


@program
def _dropout() -> Program:
    return training(DataParallel(network(nn.Dropout(0.3, along="dp")), "dp", zero=2))


def _experts() -> Program:
    ag.random.seed(0)
    model: Any = nn.Sequential(nn.Linear(8, 8), MixtureOfExperts(8, 16, 4), nn.Linear(8, 4))
    model = DataParallel(parallelize(model, {"1": Experts("ep")}), "ep")
    given = rows(axis="ep")
    optimizer = optim.SGD(model.parameters(), 0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape, side_losses():
            loss = loss_of(model(ag.tensor(x)), y, "ep")
        tape.backward(loss)
        optimizer.step()
        return loss

    return Program(step, model, given)


program(_experts, "experts", refused="MixtureOfExperts, whose routing depends on values, was called in a capt", ep=2)


# -- collectives -------------------------------------------------------------------------------------------------------
MOVES: dict[str, Callable[[Any], Any]] = {
    "all_gather": lambda y: cc.all_gather(y, "dp"),
    "reduce_scatter": lambda y: cc.reduce_scatter(y, "dp"),
    "all_to_all": lambda y: cc.all_to_all(y, "dp", 0, 0),
    "all_prod": lambda y: cc.all_prod(y, "dp"),
    "permute": lambda y: cc.permute(y, "dp", [(0, 1), (1, 0)]),
    "a permutation of some ranks": lambda y: cc.permute(y, "dp", [(0, 1)]),
    "broadcast": lambda y: cc.broadcast(y, "dp", 1, to=R),
    "scan": lambda y: cc.scan(y, "dp"),
    "all_max": lambda y: cc.all_max(y, "dp"),
    "mean": lambda y: cc.mean(y, "dp"),
    "a border": lambda y: cc.halo_exchange(y, "dp", 1, dim=0),
}


def _moved(move: Callable[[Any], Any]) -> Program:
    model = network()
    optimizer = optim.SGD(model.parameters(), 0.1, 0.9)
    parameters = list(model.parameters())

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            w, b, v, c, u, d = (cc.cast(p, "dp", to=R) for p in parameters)
            h = move(ag.numpy.tanh(nn.relu(ag.tensor(x) @ w + b) @ v + c))
            h = h @ u + d
            loss = (h * h).sum() / 24
            loss = cc.all_reduce(cc.cast(loss, "dp", to=V) if loss.layout["dp"] is R else loss, "dp", to=I)
        tape.backward(loss)
        optimizer.step()
        return loss

    return Program(step, model, rows())


for _name, _move in MOVES.items():
    program(lambda m=_move: _moved(m), f"{_name} in a step")


def outcome(make: Make, sizes: dict[str, int]) -> Any:
    """The results, parameters and gradients of this rank without and with capture, and the number of replays."""
    found = []
    for captures in (False, True):
        with cc.Mesh(**sizes):
            p = make()
            do = ag.capture(p.step) if captures else p.step
            results = []
            for k in range(CALLS):
                results.append(bits(do(*p.given(k))))
            parameters = list(p.trained.parameters())
            gradients = [None if g.grad is None else g.grad for g in parameters]
            found.append((results, bits(parameters), bits(gradients)))
    assert found[0] == found[1]
    return do.replays


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_a_program_has_the_same_bits_or_is_refused(name: str) -> None:
    make, sizes, refused = PROGRAMS[name]
    n = int(numpy.prod(list(sizes.values())))
    if refused:
        with pytest.raises(ag.CaptureError, match=refused) as error:
            cc.run(lambda: outcome(make, sizes), ranks=n)
        assert "fix:" in str(error.value)
    else:
        assert min(cc.run(lambda: outcome(make, sizes), ranks=n)) >= CALLS - 7
