"""Every program of docs/recipes.md runs on 1, 2 and 3 ranks, and its gradients are those of one process without a mesh.

A reference gets the names that a program has defined on rank 0, its data among them, and returns the gradients, or the
parameters that the program has learned, by name. The whole of a divided parameter is put together from its parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, optim, random
from collectives import Shard, V

from ..collectives.launch import ROOT, launch_command

PAGE = (ROOT / "docs" / "recipes.md").read_text()
RECIPES = {
    found[1]: (PAGE[: found.start(2)].count("\n"), found[2])
    for found in re.finditer(r"^## ([^\n]*)\n(?:(?!^## ).)*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
}
REFERENCES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
Names = dict[str, Any]


def reference(title: str) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        REFERENCES[title] = function
        return function

    return register


def run(title: str, ranks: int) -> list[Names]:
    """The names that each rank has defined when the program has ended."""
    line, text = RECIPES[title]
    code = compile("\n" * line + text, "recipes.md", "exec")

    def rank_main() -> Names:
        names: Names = {"__name__": "__main__"}
        exec(code, names)
        return names

    return cc.run(rank_main, ranks)


def whole(found: list[Any]) -> Any:
    """A value of all ranks as one array: parts are concatenated, different values are stacked."""
    label = next(iter(found[0].layout.labels))
    arrays = [x.numpy() for x in found]
    if isinstance(label, Shard):
        return numpy.concatenate(arrays, label.dim)
    if label is V:
        return of_each_rank(arrays)
    for other in arrays[1:]:
        assert numpy.array_equal(arrays[0], other)
    return arrays[0]


def of_each_rank(arrays: list[Any]) -> Any:
    """The values of all ranks as one array, also if they have different shapes."""
    if len({a.shape for a in arrays}) == 1:
        return numpy.stack(arrays)
    return numpy.concatenate([a.reshape(-1) for a in arrays])


# -- references --------------------------------------------------------------------------------------------------------
@reference("Update by hand")
def _(names: Names) -> Names:
    rng = numpy.random.default_rng(0)
    x, t = rng.standard_normal((8, 3)), rng.standard_normal((8, 2))
    weights = [rng.standard_normal(shape) for shape in [(3, 5), (5,), (5, 2)]]

    def loss(a: Any, b: Any, c: Any) -> Any:
        return np.sum((np.tanh(x @ a + b) @ c - t) ** 2) / 8

    for _ in range(5):
        gradients = [ag.grad(loss, argnum=i)(*weights) for i in range(3)]
        weights = [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]
    return {f"weights[{i}]": w for i, w in enumerate(weights)}


@reference("Rows that each rank has read")
def _(names: Names) -> Names:
    n = names["x"].global_shape[0]
    return {"w.grad": ag.grad(lambda w: np.sum((names["X"][:n] @ w) ** 2) / n)(numpy.ones((3, 2)))}


@reference("Masked tokens")
def _(names: Names) -> Names:
    x, tokens, mask = names["X"].reshape(-1, 3), names["tokens"].reshape(-1), names["M"].reshape(-1)

    def loss(w: Any) -> Any:
        return nn.cross_entropy((x @ w)[mask], tokens[mask], reduction="sum") / mask.sum()

    return {"w.grad": ag.grad(loss)(names["w"].numpy())}


@reference("A module, dropout and a checkpoint")
def _(names: Names) -> Names:
    random.seed(0)
    net = nn.Sequential(nn.Linear(4, 8, dtype=float), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 1, dtype=float))
    with ag.Tape() as tape:
        loss = (net(names["X"]) ** 2).sum() / 6
    tape.backward(loss)
    assert names["x"].global_shape[0] == 6
    learned = zip(net.parameters(), range(4), strict=True)
    return {f"net.parameters()[{i}]": p.numpy() - 0.1 * p.grad.numpy() for p, i in learned}


@reference("Tensor-parallel layers")
def _(names: Names) -> Names:
    def loss(a: Any, b: Any, bias: Any) -> Any:
        y = nn.dropout(np.tanh(names["X"] @ a), 0.5, key=random.Key(0, "dropout")) @ b + bias
        return np.sum((y - names["T"]) ** 2) / 4

    weights = names["A"], names["B"], numpy.zeros(2)
    return {f"{name}.grad": ag.grad(loss, argnum=i)(*weights) for i, name in enumerate(("a", "b", "bias"))}


@reference("Pipeline")
def _(names: Names) -> Names:
    def loss(w: Any) -> Any:
        h = names["X"]
        for stage in range(names["last"] + 1):
            h = np.tanh(h @ w[stage])
        return np.sum(h * h) / 4

    return {"w.grad": ag.grad(loss)(names["W"])[: names["last"] + 1]}


@reference("Pipeline of modules")
def _(names: Names) -> Names:
    n = names["last"] + 1
    weights = [ag.Parameter(w) for w in names["W"][:n]]
    biases = [ag.Parameter(numpy.zeros(w.shape[1])) for w in weights]
    optimizer = optim.Adam(weights + biases, lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            h = names["X"]
            for w, b in zip(weights, biases, strict=True):
                h = np.tanh(h @ w + b)
            loss = np.sum(h * h) / 6
        tape.backward(loss)
        optimizer.step()
    learned = {"net.weight": weights, "net.bias": biases}
    return {name: of_each_rank([p.numpy() for p in found]) for name, found in learned.items()}


@reference("Tied embeddings of a pipeline")
def _(names: Names) -> Names:
    table, weights = ag.Parameter(names["E"]), [ag.Parameter(w) for w in names["W"][: names["last"] + 1]]
    optimizer = optim.Adam([table, *weights], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            h = nn.embedding(names["tokens"], table)
            for w in weights:
                h = np.tanh(h @ w)
            loss = nn.cross_entropy(h @ table.T, names["target"])
        tape.backward(loss)
        optimizer.step()
    return {"table": table.numpy(), "w": numpy.stack([w.numpy() for w in weights])}


@reference("Softmax and norms over a divided dimension")
def _(names: Names) -> Names:
    def loss(x: Any) -> Any:
        return np.sum(nn.softmax(nn.layer_norm(x, (6,), numpy.ones(6), numpy.zeros(6))) ** 2)

    return {"x.grad": ag.grad(loss)(names["X"])}


@reference("Heat equation")
def _(names: Names) -> Names:
    def loss(u: Any) -> Any:
        for _ in range(20):
            wide = np.concatenate([numpy.zeros(1), u, numpy.zeros(1)])
            u = u + 0.2 * (wide[:-2] - 2 * u + wide[2:])
        return np.sum((u - names["target"]) ** 2)

    return {"u0.grad": ag.grad(loss)(names["start"])}


@reference("Ring all-reduce")
def _(names: Names) -> Names:
    given = numpy.stack([numpy.arange(3.0) + r for r in range(names["n"])])
    return {"x.grad": ag.grad(lambda x: np.sum(np.sum(x, 0) ** 2))(given)}


@reference("Transforms of a distributed loss")
def _(names: Names) -> Names:
    w, v = numpy.array([0.5, -1.0, 2.0]), names["v"]

    def loss(w: Any) -> Any:
        return np.sum(np.tanh(names["X"] @ w) ** 2) / 6

    gradient, hessian = ag.grad(loss)(w), ag.hessian(loss)(w)
    jacobian = ag.jacobian(lambda w: np.tanh(names["X"] @ w))(w)
    return {"gradient": gradient, "hessian": hessian, "slope": gradient @ v, "product": hessian @ v,
            "by_rows": jacobian, "by_columns": jacobian}  # fmt: skip


@reference("Check a gradient")
def _(names: Names) -> Names:
    return {}  # the program compares itself


@reference("A collective of your own")
def _(names: Names) -> Names:
    given = numpy.stack([numpy.arange(3.0) + r for r in range(names["mesh"].sizes[0])])
    return {"x.grad": ag.grad(lambda x: np.sum(np.sum(x, 0) ** 2))(given)}


# -- the tests ---------------------------------------------------------------------------------------------------------
def test_every_recipe_has_a_reference() -> None:
    assert set(RECIPES) == set(REFERENCES) == set(re.findall(r"^## (.*)$", PAGE, re.MULTILINE))
    assert PAGE.count("```python") == len(RECIPES)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_has_the_serial_gradient(title: str, ranks: int) -> None:
    names = run(title, ranks)
    for what, wanted in REFERENCES[title](names[0]).items():
        found = whole([eval(what, mine) for mine in names])
        assert found.shape == wanted.shape and numpy.abs(wanted).max() > 1e-3
        numpy.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11, err_msg=what)


@pytest.mark.parametrize(
    ("title", "old", "new"),
    [
        ("Pipeline", "np.tanh(h @ w)", "h @ w"),
        ("Pipeline of modules", "total + (h", "(h"),
        ("Heat equation", "0.2 *", "0.1 *"),
        ("Masked tokens", " * mask.reshape(-1)", ""),
        ("Ring all-reduce", "range(n - 1)", "range(n)"),
    ],
)
def test_a_wrong_recipe_is_seen(title: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line, text = RECIPES[title]
    assert old in text
    monkeypatch.setitem(RECIPES, title, (line, text.replace(old, new)))
    with pytest.raises(AssertionError):
        test_a_recipe_has_the_serial_gradient(title, 3)


def test_recipes_run_under_mpiexec(tmp_path: Path) -> None:
    program = tmp_path / "recipes.py"
    program.write_text("\n".join(f"exec({text!r}, {{'__name__': '__main__'}})" for _, text in RECIPES.values()))
    done = launch_command([str(program)], 3, limit_s=60)
    assert done.code == 0, done.err
