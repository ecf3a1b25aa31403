"""Exercise 3: two layers on several ranks, one divided by columns and one by rows.

    h = tanh(x @ up + b)        up [4, 6] and b [6] are divided by columns over the axis "tp"
    y = h @ down                down [6, 2] is divided by rows

Each rank has x whole (Invariant), and its parts of up, b and down. Write `columns` and `rows` with the operations of
`autograd.numpy` and two moves between labels: `cc.cast(x, "tp", to=cc.R)`, free, says that each rank uses x in its own
way from here on; `cc.all_reduce(y, "tp", to=cc.I)` adds what the ranks have. Where does each belong?

    python examples/exercises/3_layers.py

A wrong place is an error of ringtape that names the axis and the fix, or a result that differs from one process's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from collectives import I, Shard

Layer = Callable[..., Any]
X = np.random.default_rng(0).normal(size=(3, 4))
START = {name: np.random.default_rng(k).normal(size=shape) for k, (name, shape) in
         enumerate({"up": (4, 6), "b": (6,), "down": (6, 2)}.items())}  # fmt: skip
DIVIDED = {"up": 1, "b": 0, "down": 0}


def columns(x: Any, up: Any, b: Any) -> Any:
    """Return this rank's columns of tanh(x @ up + b)."""
    raise NotImplementedError("write the layer that is divided by columns")


def rows(h: Any, down: Any) -> Any:
    """Return h @ down, whole on all ranks, from this rank's columns of h and rows of down."""
    raise NotImplementedError("write the layer that is divided by rows")


def check(columns: Layer, rows: Layer, ranks: tuple[int, ...] = (1, 2, 3)) -> str:
    """Compare the layers and their gradients with one process. Returns what is wrong; "" if nothing is."""
    whole = {name: ag.Parameter(value.copy()) for name, value in START.items()} | {"x": ag.Parameter(X.copy())}
    with ag.Tape() as tape:
        y = anp.tanh(whole["x"] @ whole["up"] + whole["b"]) @ whole["down"]
        loss = (y * y).sum()
    tape.backward(loss)
    for n in ranks:
        try:
            results = cc.run(lambda: _gradients(columns, rows), n)
        except ag.RingtapeError as error:
            return f"{n} ranks: {type(error).__name__}: {error}"
        for rank, found in enumerate(results):
            for name, value in found.items():
                expected = y.numpy() if name == "y" else whole[name].grad.numpy()
                if name in DIVIDED:
                    expected = np.array_split(expected, n, axis=DIVIDED[name])[rank]
                what = "the result" if name == "y" else f"the gradient of {name}"
                if value is None:
                    return f"{n} ranks, axis 'tp', rank {rank}: there is no gradient of {name}"
                if not np.allclose(value, expected):
                    return f"{n} ranks, axis 'tp', rank {rank}: {what} is\n{value}\nneeded:\n{expected}"
    return ""


def _gradients(columns: Layer, rows: Layer) -> dict[str, Any]:
    with cc.Mesh(tp=-1) as mesh:
        rank, n = int(mesh.ranks.rank), mesh.ranks.size
        p = {name: ag.Parameter(np.array_split(value, n, DIVIDED[name])[rank].copy(), {"tp": Shard(DIVIDED[name])},
                                global_shape=value.shape, name=name) for name, value in START.items()}  # fmt: skip
        x = ag.Parameter(X.copy(), {"tp": I}, name="x")
        with ag.Tape() as tape:
            y = rows(columns(x, p["up"], p["b"]), p["down"])
            loss = (y * y).sum()
        tape.backward(loss)
        return {"y": y.numpy()} | {name: None if each.grad is None else each.grad.numpy()
                                   for name, each in {**p, "x": x}.items()}  # fmt: skip


if __name__ == "__main__":
    print(check(columns, rows) or "right: one sum forward, and one backward, the adjoint of the cast")
