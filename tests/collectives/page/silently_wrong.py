"""Ten programs that are wrong without an error, each with one wrong line, and a right version of it.

The line has the mark ``# wrong``. Each program is a function of whether it is wrong, and runs on three ranks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import optim
from collectives import I, R, Shard, V

RANKS = 3
X = np.random.default_rng(1).normal(size=(6, 4))
ROWS = [slice(2 * r, 2 * r + 2) for r in range(RANKS)]


def own_rank() -> int:
    return int(cc.world().rank)


def summed(loss: ag.Tensor) -> ag.Tensor:
    return cc.all_reduce(loss, "axis", to=I)


def padding_counted(wrong: bool) -> None:
    """Masks: the mean divides by the number of all tokens, in place of those that are no padding."""
    w = ag.Parameter(np.ones(4), name="w")
    real = (np.arange(2) <= own_rank() % 2).astype(float)
    with ag.Tape() as tape:
        error = (X[ROWS[own_rank()]] @ cc.cast(w, "axis", to=R)) ** 2
        total = summed((error * real).sum())
        count = cc.all_reduce(ag.tensor(np.ones(2) if wrong else real).sum(), "axis", to=I)  # wrong
        loss = total / count
    tape.backward(loss)


def one_mask(wrong: bool) -> None:
    """Dropout: the ranks have different rows, and the same mask."""
    random = np.random.default_rng(0 if wrong else own_rank())
    w = ag.Parameter(np.ones(4), name="w")
    with ag.Tape() as tape:
        kept = ag.tensor(X[ROWS[own_rank()]]) * (random.random((2, 4)) < 0.5).astype(float)  # wrong
        loss = summed((kept @ cc.cast(w, "axis", to=R)).sum())
    tape.backward(loss)


def overwritten_loss(wrong: bool) -> None:
    """Microbatches: the loss of the first one is overwritten."""
    w = ag.Parameter(np.ones(4), name="w")
    with ag.Tape() as tape:
        shared, total = cc.cast(w, "axis", to=R), 0.0
        for row in X[ROWS[own_rank()]]:
            total = (0.0 if wrong else total) + ((row @ shared) ** 2).sum()  # wrong
        loss = summed(total)
    tape.backward(loss)


def clipped_one_parameter(wrong: bool) -> None:
    """Clipping: the norm that the gradients are divided by is that of one of them."""
    w, b = ag.Parameter(np.ones(4), name="w"), ag.Parameter(np.zeros(2), name="b")
    with ag.Tape() as tape:
        loss = summed((X[ROWS[own_rank()]] @ cc.cast(w, "axis", to=R) + cc.cast(b, "axis", to=R)).sum())
    tape.backward(loss)
    optim.clip_grad_norm_([w] if wrong else [w, b], 0.5)  # wrong
    optim.SGD([w, b], lr=0.1).step()


def parameter_left_out(wrong: bool) -> None:
    """Optimizer: one parameter is not among those that it updates."""
    w, b = ag.Parameter(np.ones(4), name="w"), ag.Parameter(np.zeros(2), name="b")
    with ag.Tape() as tape:
        loss = summed((X[ROWS[own_rank()]] @ cc.cast(w, "axis", to=R) + cc.cast(b, "axis", to=R)).sum())
    tape.backward(loss)
    optim.SGD([w] if wrong else [w, b], lr=0.1).step()  # wrong


def one_slice(wrong: bool) -> None:
    """Tensor parallel: every rank takes the first part of the weights."""
    whole = np.random.default_rng(5).normal(size=(4, 6))
    mine = whole[:, ROWS[0 if wrong else own_rank()]]
    w = ag.Parameter(mine, {"axis": Shard(1)}, global_shape=(4, 6), name="w")
    with ag.Tape() as tape:
        loss = ((cc.cast(ag.constant(X), "axis", to=R) @ w) ** 2).sum()  # wrong
        loss = summed(loss)
    tape.backward(loss)


def off_the_tape(wrong: bool) -> None:
    """Pipeline: the first stage sends a value whose gradient it stops."""
    w = ag.Parameter(np.ones((4, 4)) + np.eye(4) * (1 + own_rank()), {"axis": V}, name=f"w{own_rank()}")
    with ag.Tape() as tape:
        x = ag.tensor(X) if own_rank() == 0 else cc.recv("axis", own_rank() - 1)
        x = anp.tanh(x @ w)
        if own_rank() < RANKS - 1:
            cc.send(ag.stop_gradient(x) if wrong and own_rank() == 0 else x, "axis", own_rank() + 1)  # wrong
        loss = summed((x * x).sum() if own_rank() == RANKS - 1 else ag.tensor(0.0))
    tape.backward(loss)


def experts_out_of_order(wrong: bool) -> None:
    """Experts: the results come back in the order of the experts, and are not restored to that of the tokens."""
    tokens = np.random.default_rng(own_rank()).normal(size=(6, 1))
    expert = np.random.default_rng(10 + own_rank()).permutation(6) // 2
    order = np.argsort(expert, kind="stable")
    gate = ag.Parameter(np.ones(1), {"axis": V}, name="gate")
    with ag.Tape() as tape:
        rows = cc.all_to_all(ag.tensor(tokens)[order], "axis", 0, 0)
        back = cc.all_to_all(rows * gate, "axis", 0, 0)
        result = back[order if wrong else np.argsort(order)]  # wrong
        loss = summed((result * tokens).sum())
    tape.backward(loss)


def labels_in_another_order(wrong: bool) -> None:
    """Data order: the labels of a shuffled batch are not shuffled with it. The label of a row is its sum."""
    order = np.random.default_rng(own_rank()).permutation(6)
    w = ag.Parameter(np.ones(4), name="w")
    with ag.Tape() as tape:
        predicted = ag.tensor(X[order]) @ cc.cast(w, "axis", to=R)
        error = predicted - (X.sum(1) if wrong else X.sum(1)[order])  # wrong
        loss = summed((error * error).sum())
    tape.backward(loss)


def ring_in_the_wrong_direction(wrong: bool) -> None:
    """Domain decomposition: each rank gets the border of its right neighbour in place of the left one."""
    w = ag.Parameter(np.ones(4), {"axis": V}, name="w")
    by = -1 if wrong else 1
    with ag.Tape() as tape:
        border = cc.permute(X[own_rank()] * w, "axis", [(r, (r + by) % RANKS) for r in range(RANKS)])  # wrong
        loss = summed((border * border).sum())
    tape.backward(loss)


PROGRAMS: list[Callable[[bool], None]] = [
    padding_counted, one_mask, overwritten_loss, clipped_one_parameter, parameter_left_out, one_slice, off_the_tape,
    experts_out_of_order, labels_in_another_order, ring_in_the_wrong_direction,
]  # fmt: skip


def wrong_line(program: Callable[[bool], None]) -> int:
    """The line with the mark."""
    lines, first = inspect.getsourcelines(program)
    return first + next(k for k, line in enumerate(lines) if line.rstrip().endswith("# wrong"))
