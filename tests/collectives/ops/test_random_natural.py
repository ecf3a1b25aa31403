"""Random programs of indexing, reshapes, joins, contractions and sorts on uneven parts, compared with one process.

Each program is a chain of steps that keeps an array of rows, sharded on dimension 0, and ends in a weighted sum. The
parts of the three ranks have 5, 4 and 3 rows, or 7, 5 and none. A program that is refused must be refused on a rank
by a typed error; one that runs must have the value and the gradients of one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from collectives import I, R, Shard

PARTS = {"5/4/3": (5, 4, 3), "7/5/0": (7, 5, 0)}
ROWS, COLUMNS = 12, 4
_Step = Callable[[Any, Any, Any], Any]  # of the rows, a matrix and the number of rows
STEPS: dict[str, _Step] = {
    "columns": lambda x, w, n: x[:, 1:3],
    "columns backwards": lambda x, w, n: x[:, ::-1],
    "columns by a list": lambda x, w, n: x[:, [2, 0, 1, 1]],
    "a new dimension": lambda x, w, n: x[:, None] * np.ones((2, 1)),
    "an ellipsis": lambda x, w, n: x[..., :2],
    "a mask": lambda x, w, n: x[x[:, 0] > 0],
    "the first rows": lambda x, w, n: x[:3],
    "a reshape": lambda x, w, n: x.reshape(x.shape[0], -1, 1),
    "flat": lambda x, w, n: x.reshape(-1),
    "flat and back": lambda x, w, n: x.reshape(-1).reshape(-1, 2),
    "pairs of columns": lambda x, w, n: x.reshape(-1, 2, x.shape[-1] // 2),
    "a reshape to all rows": lambda x, w, n: x.reshape(n, -1),
    "transposed": lambda x, w, n: x.T,
    "axes exchanged": lambda x, w, n: np.swapaxes(x[:, :, None], 1, 2),
    "joined columns": lambda x, w, n: np.concatenate([x, x[:, :1] ** 2], 1),
    "joined rows": lambda x, w, n: np.concatenate([x, x], 0),
    "stacked": lambda x, w, n: np.stack([x, np.sin(x)], 1),
    "contracted columns": lambda x, w, n: np.einsum("ij,jk->ik", x[:, :3], w[:3]),
    "contracted rows": lambda x, w, n: np.einsum("ij,ik->jk", x, x),
    "outer": lambda x, w, n: np.einsum("i,j->ij", x[:, 0], w[0]),
    "a trace": lambda x, w, n: np.einsum("ij,ij->i", x, x),
    "where": lambda x, w, n: np.where(x > 0, x, 0.1 * x),
    "where rows": lambda x, w, n: np.where(x[:, :1] > 0, x, w[0, : x.shape[-1]]),
    "cumsum of columns": lambda x, w, n: np.cumsum(x, 1),
    "cumsum of rows": lambda x, w, n: np.cumsum(x, 0),
    "cumsum": lambda x, w, n: np.cumsum(x),
    "sorted columns": lambda x, w, n: np.sort(x, 1),
    "sorted rows": lambda x, w, n: np.sort(x, 0),
    "argsort": lambda x, w, n: np.take_along_axis(x, np.argsort(x, 1), 1),
    "a matrix": lambda x, w, n: x @ w[: x.shape[-1]],
    "normalized": lambda x, w, n: x / np.sqrt((x**2).sum(-1, keepdims=True) + 1),
    "centred": lambda x, w, n: x - x.mean(-1, keepdims=True),
    "centred rows": lambda x, w, n: x - x.mean(0),
    "a softmax": lambda x, w, n: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    "repeated": lambda x, w, n: np.repeat(x, 2, 0),
    "tiled": lambda x, w, n: np.tile(x, (1, 2)),
    "padded": lambda x, w, n: np.pad(x, ((0, 0), (1, 0))),
    "rolled": lambda x, w, n: np.roll(x, 1, 1),
    "the sum of rows": lambda x, w, n: x.sum(0) * 1.0,
    "maxima": lambda x, w, n: x.max(-1),
}


def program(seed: int) -> tuple[list[str], Callable[[Any, Any], Any]]:
    """The names of the steps, of which serial NumPy can run the chain, and the program."""
    rng = numpy.random.default_rng(seed)
    x, w = rng.standard_normal((ROWS, COLUMNS)), rng.standard_normal((COLUMNS, COLUMNS))
    names: list[str] = []
    while len(names) < 2 + seed % 3:
        name = str(rng.choice(list(STEPS)))
        try:
            y = STEPS[name](x, w, ROWS)
        except Exception:
            continue
        if y.size and numpy.all(numpy.isfinite(y)):
            x = y
            names.append(name)

    def run(x: Any, w: Any) -> Any:
        for name in names:
            x = STEPS[name](x, w, ROWS)
        return (np.tanh(x) * (1 + x**2)).sum()

    return names, run


def outcomes(seed: int, parts: tuple[int, ...]) -> str:
    names, f = program(seed)
    rng = numpy.random.default_rng(1000 + seed)
    x, w = rng.standard_normal((ROWS, COLUMNS)), rng.standard_normal((COLUMNS, COLUMNS))
    with numpy.errstate(all="ignore"):
        try:
            value = f(x, w)
            gx, gw = ag.grad(f, (0, 1))(x, w)
        except Exception:
            return "serial"  # these values do not fit the program, such as a mask that keeps nothing
    at = numpy.cumsum((0, *parts))

    def body() -> Any:
        with cc.Mesh(dp=len(parts)) as mesh:
            k = int(mesh.axis("dp").rank)
            rows = cc.from_local(x[at[k] : at[k + 1]], {"dp": Shard(0)}, requires_grad=True)
            weight = ag.Parameter(w)
            with ag.Tape() as tape:
                y = f(rows, cc.cast(weight, "dp", to=R))
                loss = cc.all_reduce(y, "dp", to=I)
            tape.backward(loss)
            return [loss.numpy(), *[0.0 if p.grad is None else p.grad.numpy() for p in (rows, weight)]]

    try:
        found = cc.run(body, ranks=len(parts))
    except ag.RingtapeError:
        return "refused"
    wrong = f"{names} on parts {parts}"
    assert all(numpy.allclose(v, value) for v, _, _ in found), f"value of {wrong}"
    gradients = [numpy.broadcast_to(g, (n, COLUMNS)) for (_, g, _), n in zip(found, parts, strict=True)]
    assert numpy.allclose(numpy.concatenate(gradients), gx), f"gradient of {wrong}"
    assert all(numpy.allclose(g, 0.0 if gw is None else gw) for _, _, g in found), f"weight's gradient of {wrong}"
    return "right"


@pytest.mark.parametrize("parts", PARTS)
def test_thirty_random_programs(parts: str) -> None:
    said = [outcomes(seed, PARTS[parts]) for seed in range(30)]
    assert said.count("right") >= 5, said


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_a_thousand_random_programs(first: int) -> None:
    for seed in range(first, first + 100):
        for parts in PARTS.values():
            outcomes(seed, parts)
