"""Groups of parameters with hyperparameters of their own, beside one optimizer for each group."""

from __future__ import annotations

import copy
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import optim
from autograd.errors import ArgumentError, LayoutError, OptionError, ReplicaMismatch, ShapeError
from autograd.optim import schedules

RANDOM = numpy.random.default_rng(0)
STARTS = [RANDOM.standard_normal(shape) for shape in ((3, 2), (4,), ())]
GRADIENTS = [[RANDOM.standard_normal(start.shape) for start in STARTS] for _ in range(5)]
MAKERS: dict[str, Any] = {
    "SGD": (optim.SGD, {"momentum": 0.9}, {"momentum": 0.5, "weight_decay": 0.1}),
    "Adam": (optim.Adam, {}, {"betas": (0.5, 0.9), "eps": 1e-3}),
    "AdamW": (optim.AdamW, {}, {"weight_decay": 0.0}),
    "Adagrad": (optim.Adagrad, {}, {"lr_decay": 0.3}),
    "RMSprop": (optim.RMSprop, {"momentum": 0.5}, {"centered": True}),
    "LARS": (optim.LARS, {}, {"trust": 0.1}),
    "LAMB": (optim.LAMB, {}, {"weight_decay": 0.3}),
}


def parameters() -> list[ag.Parameter]:
    return [ag.Parameter(start) for start in STARTS]


def train(optimizers: list[optim.Optimizer], ps: list[ag.Parameter], steps: range = range(5)) -> list[Any]:
    for n in steps:
        for p, g in zip(ps, GRADIENTS[n], strict=True):
            p.zero_grad()
            p.accumulate(g)
        for optimizer in optimizers:
            optimizer.step()
    return [p.numpy() for p in ps]


@pytest.mark.parametrize("name", MAKERS)
def test_a_group_is_an_optimizer_of_its_own(name: str) -> None:
    make, common, own = MAKERS[name]
    fast = schedules.exponential_lr(0.2, 0.5)
    first, second = parameters(), parameters()
    together = make([{"params": first[:2]}, {"params": first[2], "lr": fast, **own}], lr=0.05, **common)
    apart = [make(second[:2], lr=0.05, **common), make(second[2:], lr=fast, **{**common, **own})]
    for a, b in zip(train([together], first), train(apart, second), strict=True):
        numpy.testing.assert_allclose(a, b, rtol=1e-14)


def test_groups_are_dictionaries_of_their_numbers() -> None:
    ps = parameters()
    optimizer = optim.SGD([{"params": ps[:1]}, {"params": ps[1:], "lr": 0.3}], lr=0.1, momentum=0.5)
    first, second = optimizer.param_groups
    assert list(first) == ["params", "lr", "momentum", "weight_decay", "dampening", "nesterov"] and len(first) == 6
    assert first["params"] == ps[:1] and second["params"] == ps[1:]
    for group in optimizer.param_groups:
        group["lr"] *= 10
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 3.0] and optimizer.lr == 0.1
    assert optimizer.numbers()["lr of group 1"] == 3.0
    single = optim.SGD(ps, lr=0.1)
    single.param_groups[0]["lr"] = 0.7
    assert single.lr == 0.7
    assert "3 parameters, lr=0.7" in repr(single) and "Group(2 parameters, lr=3.0" in repr(optimizer)


def rates(optimizer: optim.Optimizer, ps: list[ag.Parameter], steps: int) -> list[list[float]]:
    """For each step, the rate that each parameter was updated with."""
    found = []
    for _ in range(steps):
        before = [p.numpy().copy() for p in ps]
        for p in ps:
            p.grad = numpy.ones(p.shape)
        optimizer.step()
        found.append([round(float((a - p.numpy()).max()), 12) for a, p in zip(before, ps, strict=True)])
    return found


def test_the_numbers_of_a_single_group_are_used() -> None:
    ps = parameters()[:2]
    optimizer = optim.SGD([{"params": ps, "lr": schedules.exponential_lr(1.0, 0.5)}], lr=0.1)
    assert optimizer.lr == 1.0 and rates(optimizer, ps, 2) == [[1.0, 1.0], [0.5, 0.5]] and optimizer.lr == 0.5
    first, second = parameters(), parameters()
    optimizer = optim.SGD([{"params": first, "momentum": 0.9, "lr": 0.05}], lr=0.1)
    for a, b in zip(train([optimizer], first), train([optim.SGD(second, 0.05, 0.9)], second), strict=True):
        numpy.testing.assert_allclose(a, b, rtol=1e-14)
    optimizer.param_groups[0]["momentum"] = 0.5
    assert optimizer.param_groups[0]["momentum"] == 0.5 and "momentum=0.5" in repr(optimizer)
    assert optimizer.state_dict()["groups"] == [{"momentum": 0.5}]


def test_a_rate_that_is_assigned_ends_the_schedule() -> None:
    halves = schedules.exponential_lr(1.0, 0.5)
    ps = parameters()[:2]
    optimizer = optim.SGD(ps, lr=halves)
    assert rates(optimizer, ps, 2) == [[1.0, 1.0], [0.5, 0.5]]
    optimizer.lr = 0.07
    assert rates(optimizer, ps, 2) == [[0.07, 0.07]] * 2 and optimizer.lr == 0.07
    optimizer = optim.SGD([{"params": ps[:1], "lr": halves}, {"params": ps[1:]}], lr=halves)
    assert rates(optimizer, ps, 1) == [[1.0, 1.0]]
    optimizer.param_groups[0]["lr"] *= 3.0
    assert rates(optimizer, ps, 2) == [[3.0, 0.5], [3.0, 0.25]] and optimizer.lr == 0.25
    del optimizer.param_groups[0]["lr"]
    assert rates(optimizer, ps, 1) == [[0.125, 0.125]]
    with pytest.raises(ArgumentError, match="needed: a number"):
        optimizer.param_groups[0]["lr"] = halves
        optimizer.step()


def test_a_schedule_continues_from_a_state() -> None:
    halves = schedules.exponential_lr(1.0, 0.5)

    def make(ps: list[ag.Parameter]) -> optim.Optimizer:
        return optim.SGD([{"params": ps[:1], "lr": halves}, {"params": ps[1:]}], lr=halves)

    ps = parameters()[:2]
    optimizer, other = make(ps), make(ps)
    rates(optimizer, ps, 2)
    other.load_state_dict(optimizer.state_dict())
    assert other.lr == 0.5 and rates(other, ps, 2) == [[0.25, 0.25], [0.125, 0.125]]


def test_bad_groups() -> None:
    ps = parameters()
    with pytest.raises(ArgumentError, match="a group of parameters with 'rate' was given"):
        optim.SGD([{"params": ps, "rate": 0.1}], lr=0.1)
    with pytest.raises(ArgumentError, match="dictionaries with the key 'params'"):
        optim.SGD([{"params": ps}, ps[0]], lr=0.1)
    with pytest.raises(OptionError, match="momentum=-1"):
        optim.SGD([{"params": ps[:1]}, {"params": ps[1:], "momentum": -1.0}], lr=0.1)
    with pytest.raises(OptionError, match="nesterov"):
        optim.SGD([{"params": ps[:1]}, {"params": ps[1:], "nesterov": True}], lr=0.1)
    with pytest.raises(OptionError, match="given twice"):
        optim.Adam([{"params": ps}, {"params": ps[:1]}])
    optimizer = optim.Adam([{"params": ps[:1]}, {"params": ps[1:], "lr": 0.1}])
    with pytest.raises(ArgumentError, match="'momentum' was given"):
        optimizer.param_groups[0]["momentum"] = 0.1
    optimizer.param_groups[1]["lr"] = float("nan")
    with pytest.raises(OptionError, match="lr=nan"):
        optimizer.step()


def test_the_state_contains_the_numbers_of_the_groups() -> None:
    def made(ps: list[ag.Parameter]) -> optim.Optimizer:
        return optim.Adam([{"params": ps[:1]}, {"params": ps[1:], "lr": 0.3}], lr=0.1)

    ps = parameters()
    optimizer = made(ps)
    train([optimizer], ps, range(2))
    optimizer.param_groups[1]["lr"] = 0.01
    again = [ag.Parameter(p.array) for p in ps]
    other = made(again)
    other.load_state_dict(optimizer.state_dict())
    copied_ps, copied = copy.deepcopy((ps, optimizer))
    wanted = train([optimizer], ps, range(2, 5))
    for each in (train([other], again, range(2, 5)), train([copied], copied_ps, range(2, 5))):
        for a, b in zip(each, wanted, strict=True):
            assert (a == b).all()
    with pytest.raises(ShapeError, match="in 2 groups"):
        other.load_state_dict(optim.Adam(parameters()).state_dict())


def test_on_a_mesh_the_numbers_of_a_group_are_compared() -> None:
    def program(change: Any) -> str:
        with cc.Mesh(dp=2) as mesh:
            a, b = ag.Parameter(STARTS[0], name="a"), ag.Parameter(STARTS[1] + int(mesh.place[0]), {"dp": cc.V})
            optimizer = optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.2}], lr=0.1)
            try:
                change(optimizer, mesh)
                optimizer.step()
            except (LayoutError, ReplicaMismatch) as error:
                return type(error).__name__
            return ""

    def own(group: int, is_plain: bool) -> Any:
        def change(optimizer: Any, mesh: Any) -> None:
            lr = (mesh.place[0] + 1) * 0.1
            optimizer.param_groups[group]["lr"] = float(lr) if is_plain else lr

        return change

    assert cc.run(lambda: program(own(0, False)), 2) == ["LayoutError"] * 2
    assert cc.run(lambda: program(own(0, True)), 2) == ["ReplicaMismatch"] * 2
    # An optimizer of copies has the same numbers on all ranks, those of a group of Varying parameters, too.
    assert cc.run(lambda: program(own(1, False)), 2) == ["ReplicaMismatch"] * 2
