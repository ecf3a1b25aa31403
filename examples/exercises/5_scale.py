"""Exercise 5: a loss whose gradient does not depend on the number of ranks.

A classifier is trained on 22 rows, which the ranks divide: with three ranks some have eight and some seven. Each rank
gets its rows as plain arrays. Write `loss`: the mean of the cross-entropy over all rows of all ranks, a number that is
Invariant on "dp". `model(x)` gives the scores of this rank's rows; `rows` is the number of all rows.

    python examples/exercises/5_scale.py

Two ways are close, and wrong: the mean of this rank's rows, summed over the ranks; and the mean of the ranks' means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, random
from parallel import DataParallel

Loss = Callable[[Any, np.ndarray, np.ndarray, int], Any]
X, Y = np.random.default_rng(0).normal(size=(22, 4)), np.random.default_rng(1).integers(0, 3, 22)


def loss(model: Any, x: np.ndarray, y: np.ndarray, rows: int) -> Any:
    """Return the mean of the cross-entropy over all rows of all ranks."""
    raise NotImplementedError("write the loss")


def check(loss: Loss, ranks: tuple[int, ...] = (1, 2, 3, 5)) -> str:
    """Compare the gradient with that of one process. Returns what is wrong; "" if nothing is."""
    model = _model()
    with ag.Tape() as tape:
        whole = nn.cross_entropy(model(X), Y)
    tape.backward(whole)
    expected = {name: p.grad.numpy() for name, p in model.named_parameters()}

    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            rank, n = int(mesh.ranks.rank), mesh.ranks.size
            model = DataParallel(_model(), "dp")
            with ag.Tape() as tape:
                total = loss(model, np.array_split(X, n)[rank], np.array_split(Y, n)[rank], len(X))
            tape.backward(total)
            return {name.removeprefix("module."): p.grad for name, p in model.named_parameters()}

    cc.check(scale="error")
    try:
        for n in ranks:
            try:
                results = cc.run(program, n)
            except ag.RingtapeError as error:
                return f"{n} ranks, axis 'dp': {type(error).__name__}: {error}"
            for name, wanted in expected.items():
                found = results[0][name]
                if found is None:
                    return f"{n} ranks, axis 'dp': there is no gradient of {name}"
                if not np.allclose(found.numpy(), wanted):
                    factor = float(np.vdot(found.numpy(), wanted) / np.vdot(wanted, wanted))
                    return f"{n} ranks, axis 'dp': the gradient of {name} is about {factor:.3g} times the right one"
    finally:
        cc.check(scale="warn")
    return ""


def _model() -> nn.Linear:
    random.seed(0)
    return nn.Linear(4, 3, dtype=float)


if __name__ == "__main__":
    print(check(loss) or "right: the loss carries the number of all rows, and gradients are only added")
