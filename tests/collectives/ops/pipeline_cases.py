"""Pipelines whose stages sweep the tapes of their microbatches in different orders."""

from __future__ import annotations

import itertools
from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.engine.tensor import Tensor
from collectives import I, V

MICROBATCHES = 3
ROWS = (4, 4, 3)  # the last microbatch is smaller


def draw(name: str, *shape: int) -> Any:
    """The same numbers on every rank."""
    return numpy.random.default_rng(list(name.encode())).standard_normal(shape)


def weights(stages: int) -> list[Any]:
    return [draw(f"w{s}", 3, 3) for s in range(stages)]


def serial(w: Any) -> Any:
    """The loss of all microbatches on one process."""
    total: Any = 0.0
    for m, rows in enumerate(ROWS):
        x = draw(f"x{m}", rows, 3)
        for each in w:
            x = np.tanh(x @ each)
        total = total + (x * draw(f"t{m}", rows, 3)).sum()
    return total


def transfer(nonblocking: bool) -> tuple[Any, Any]:
    """`send` and `recv`, or their nonblocking forms, which are waited for at once."""
    if not nonblocking:
        return cc.send, cc.recv
    return (lambda *args: cc.isend(*args).wait()), (lambda *args: cc.irecv(*args).wait())


def stage_of(m: int, w: Any, nonblocking: bool) -> Any:
    """One microbatch on this stage: the loss on the last stage, the value that was sent on the others."""
    on = cc.current_mesh().axis("pp")
    stage, (send, recv) = int(on.rank), transfer(nonblocking)
    x = draw(f"x{m}", ROWS[m], 3) if stage == 0 else recv("pp", stage - 1)
    y = np.tanh(x @ w)
    if stage + 1 < on.size:
        send(y, "pp", stage + 1)
        return ag.tensor(numpy.zeros(()))
    return (y * draw(f"t{m}", ROWS[m], 3)).sum()


def gradient(orders: Any, nonblocking: bool = False, sweeps: int = 1) -> Any:
    """The gradient of this stage's weight, where stage s sweeps its tapes in the order ``orders[s]``."""
    with cc.Mesh(pp=len(orders)) as mesh:
        stage = int(mesh.axis("pp").rank)
        w = ag.Parameter(weights(len(orders))[stage], {"pp": V})
        tapes, losses = [], []
        for m in range(MICROBATCHES):
            with ag.Tape() as tape:
                losses.append(stage_of(m, w, nonblocking))
            tapes.append(tape)
        for k in range(sweeps):
            for m in orders[stage]:
                tapes[m].backward(losses[m], 1.0, retain=k + 1 < sweeps)
        return w.grad.numpy()


def tangent(orders: Any, nonblocking: bool = False) -> float:
    """The derivative of the loss in the direction of the weights, by forward mode in the order ``orders[s]``."""
    with cc.Mesh(pp=len(orders)) as mesh:
        stage, total = int(mesh.axis("pp").rank), 0.0
        w = ag.Parameter(weights(len(orders))[stage], {"pp": V})
        tapes, losses = [], []
        for m in range(MICROBATCHES):
            with ag.Tape() as tape:
                losses.append(stage_of(m, w, nonblocking))
            tapes.append(tape)
        for m in orders[stage]:
            (found,) = tapes[m].forward([w_on(tapes[m], w)], [w.numpy()], [losses[m]])
            total += 0.0 if found is None else float(found)
        return total


def w_on(tape: Any, w: Any) -> Any:
    """The weight as a value of a tape, which forward mode takes as its input."""
    place = tape.recording.leaves[id(w)]
    return Tensor(w.array, w.layout, tape.recording, place)


def second(orders: Any, nonblocking: bool = False) -> Any:
    """The gradient of the squared norm of the gradient: the sweeps are recorded, in the order ``orders[s]``."""
    with cc.Mesh(pp=len(orders)) as mesh:
        stage = int(mesh.axis("pp").rank)
        w = ag.Parameter(weights(len(orders))[stage], {"pp": V})
        with ag.Tape() as outer:
            found: Any = 0.0
            tapes, losses = [], []
            for m in range(MICROBATCHES):
                with ag.Tape() as tape:
                    losses.append(stage_of(m, w, nonblocking))
                tapes.append(tape)
            for m in orders[stage]:
                (g,) = tapes[m].backward(losses[m], 1.0, wanted=[w], record=True)
                found = found + g
            loss = cc.all_reduce((found * found).sum(), "pp", to=I)
        outer.backward(loss)
        return w.grad.numpy()


def faults(nonblocking: bool) -> list[str]:
    """Run many orders on all ranks; return what differs from the serial program."""
    wrong = []
    rank, size = int(cc.world().rank), cc.world().size
    orders = list(itertools.permutations(range(MICROBATCHES)))
    chosen = [(a, b) for a in orders[::2] for b in orders] if size == 2 else [
        tuple(orders[(k * n) % 6] for n in range(1, size + 1)) for k in range(6)]  # fmt: skip
    want = ag.grad(serial)(weights(size))[rank]
    for each in chosen:
        if not numpy.allclose(gradient(each, nonblocking), want):
            wrong.append(f"gradient in the orders {each}")
    mixed = chosen[-2]
    if not numpy.allclose(gradient(mixed, nonblocking, sweeps=2), 2 * want):
        wrong.append(f"two sweeps in the orders {mixed}")
    first = ag.grad(serial)
    norm = ag.grad(lambda w: sum((g * g).sum() for g in first(w)))
    if not numpy.allclose(second(mixed, nonblocking), norm(weights(size))[rank]):
        wrong.append(f"second derivative in the orders {mixed}")
    along = sum((g * w).sum() for g, w in zip(first(weights(size)), weights(size), strict=True))
    if not numpy.allclose(tangent(mixed, nonblocking), along if rank == size - 1 else 0.0):
        wrong.append(f"tangent in the orders {mixed}")
    return wrong
