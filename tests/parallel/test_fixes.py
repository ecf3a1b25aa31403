"""Every fix that an error message offers leads to the serial gradient.

Each program has holes: it makes its leaves by `Run.leaf`, and calls operations by `Run.do`, which name the operands as
messages do. If a program is refused, the fix in the text is put into the hole mechanically, and the program runs again,
until it ends. Then its gradients must be those of the serial program.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from autograd.errors import RingtapeError
from collectives import I, R, Shard

MOST = 6  # fixes of one program
X, T, W = (numpy.random.default_rng(i).standard_normal(shape) for i, shape in enumerate([(7, 4), (7, 3), (4, 3)]))


class Run:
    """One run of a program with some fixes put in.

    Attributes
    ----------
    fixes : dict
        By place: for the name of an operand, or for the whole call (""), expressions; for the name of a leaf, labels.
    """

    def __init__(self, mesh: Any, fixes: dict[str, dict[str, list[str]]]):
        self.mesh, self.fixes = mesh, fixes
        self.parameters: dict[str, Any] = {}

    def leaf(self, name: str, array: Any, layout: dict[str, Any] | None = None, **more: Any) -> Any:
        """A leaf, or the plain array if `layout` is None and nothing else is given."""
        labels = dict(layout or {})
        for text in self.fixes.get(name, {}).get("", []):
            labels.update(eval(text.replace("..., ", ""), NAMES))
        return ag.tensor(array, labels or None, name=name, **more)

    def parameter(self, name: str, array: Any, layout: Any = None, **more: Any) -> Any:
        p = self.parameters[name] = ag.Parameter(array, layout, name=name, **more)
        return p

    def do(self, place: str, operation: Callable[..., Any], **operands: Any) -> Any:
        mine = self.fixes.get(place, {})
        for name, texts in mine.items():
            for text in texts:
                if not name:
                    return eval(text, NAMES, operands)
                operands[name] = eval(text, NAMES, operands)
        try:
            return operation(*operands.values())
        except RingtapeError as error:
            error.place, error.operands = place, operands
            raise

    def rows(self, axis: str = "dp", n: int = 7) -> slice:
        on = self.mesh.axis(axis)
        part = numpy.array_split(numpy.arange(n), on.size)[int(on.rank)]
        return slice(int(part[0]), int(part[-1]) + 1)

    def backward(self, tape: Any, loss: Any) -> dict[str, Any]:
        self.do("backward", tape.backward, loss=loss)
        return {name: p.grad.numpy() for name, p in self.parameters.items()}

    def sharded(self, array: Any) -> Any:
        return cc.shard(ag.tensor(array, layout=dict.fromkeys(self.mesh.names, R)), "dp")


NAMES = {**vars(cc), "ag": ag, "cc": cc}
SAME = re.compile(r"The same on all ranks[^?]*\?\s+(?:fix: )?(?P<how>.+)")
FIX = re.compile(r"^  fix: (?P<how>.+?)(?P<different>, if the ranks of '\w+' have different data)?(?:   \(.*)?$", re.M)
MADE = re.compile(r"^  (?P<name>\w+)(?:: \S+ \{.*\})? was made without a label", re.M)


def fix_of(text: str, is_same: bool, operands: dict[str, Any]) -> tuple[str | None, str, str]:
    """(the leaf or None for this place, the operand or "" for the whole call, the expression)."""
    found = SAME.search(text) if is_same else None
    how = found["how"].strip() if found else None
    if how is None:
        line = FIX.search(text)
        assert line is not None, text
        assert is_same is False or not line["different"], text
        how = line["how"]
    if labels := re.match(r"layout=(\{.*\}) where", how):
        leaf = MADE.search(text)
        assert leaf is not None, text
        return getattr(operands.get(leaf["name"]), "name", leaf["name"]) or leaf["name"], "", labels[1]
    for name, x in operands.items():  # the text has the name of a Tensor that has one
        if own := getattr(x, "name", ""):
            how = re.sub(rf"\b{own}\b(?=[,)])", name, how)
    how = how.replace("dim=...", "dim=0").removesuffix(" first").split(", or ")[0].split(" and ")[0]
    if how.startswith("leave "):
        return None, "", next(iter(operands))
    inside = re.match(r"(?:\w+\.)?\w+\((\w+)[,)]", how)
    return None, inside[1] if inside and inside[1] in operands else "", how


PROGRAMS: dict[str, tuple[Any, Any, dict[str, int], bool, str]] = {}


def program(serial: Any, is_same: bool = False, says: str = "", **axes: int) -> Any:
    """Decorator: a program, its serial loss of {name: parameter}, whether unlabelled data are the same on all ranks."""

    def register(run: Any) -> Any:
        PROGRAMS[run.__name__] = run, serial, axes or {"dp": 3}, is_same, says
        return run

    return register


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_fixes_lead_to_the_serial_gradient(name: str) -> None:
    run, serial, axes, is_same, says = PROGRAMS[name]
    fixes: dict[str, dict[str, list[str]]] = {}
    told: list[str] = []

    def rank_main() -> Any:
        with cc.Mesh(**axes) as mesh:
            return run(Run(mesh, fixes))

    for _ in range(MOST):
        try:
            found = cc.run(rank_main, int(numpy.prod(list(axes.values()))))
            break
        except RingtapeError as error:
            assert hasattr(error, "place"), f"{error}\nafter\n" + "\n".join(told)
            told.append(str(error))
            leaf, operand, how = fix_of(str(error), is_same, error.operands)
            place = leaf or error.place
            before = fixes.setdefault(place, {}).setdefault(operand, [])
            assert how not in before, "\n".join(told)
            before.append(how)
    else:
        raise AssertionError("\n".join(told))
    assert told, "the program is not refused"
    assert says in "\n".join(told), "\n".join(told)
    wanted = ag.grad(serial)({"w": W})
    for gradients in found:
        for key, gradient in gradients.items():
            assert numpy.allclose(gradient, wanted[key], rtol=1e-9, atol=1e-12), "\n".join(told)


# -- operations along sharded rows -------------------------------------------------------------------------------------
def entered(run: Run) -> Any:
    return cc.cast(run.parameter("w", W), "dp", to=R)


def of_rows(place: str, operation: Any, **operands: str) -> Any:
    """A program that applies an operation to the differences of sharded rows."""

    def body(run: Run) -> Any:
        with ag.Tape() as tape:
            x, t, w = run.sharded(X), run.sharded(T), entered(run)
            d = run.do(place, operation, x=x @ w - t)
            return run.backward(tape, (d * 1.0).sum())

    body.__name__ = place
    return body


for _name, _operation, _says in [
    ("standard_deviation", lambda x: np.std(x, 0), "all_gather(x, 'dp', dim=0)"),
    ("variance", lambda x: np.var(x), "all_gather(x, 'dp', dim=0)"),
    ("softmax_over_rows", lambda x: nn.softmax(x, 0) ** 2, "all_gather(x, 'dp', dim=0)"),
    ("cumulative_sum", lambda x: np.cumsum(x, 0), "all_gather(x, 'dp', dim=0)"),
    ("maximum", lambda x: np.max(x, 0), "all_gather(x, 'dp', dim=0)"),
    ("reversed", lambda x: x[::-1] * ag.constant(numpy.arange(1.0, 4)), "all_gather(x, 'dp', dim=0)"),
]:
    program(lambda p, f=_operation: (f(X @ p["w"] - T) * 1.0).sum(), says=_says)(of_rows(_name, _operation))


# -- how data get their labels ----------------------------------------------------------------------------------------
def squares(p: dict[str, Any]) -> Any:
    return ((X @ p["w"] - T) ** 2).sum()


def finish(run: Run, tape: Any, x: Any, w: Any, t: Any) -> dict[str, Any]:
    y = run.do("matmul", lambda x, w: x @ w, x=x, w=w)
    d = run.do("subtract", lambda x, y: x - y, x=y, y=t)
    return run.backward(tape, (d**2).sum())


@program(squares, is_same=True, says="ag.tensor(x, layout={'dp': R})")
def shard_of_an_array_that_all_ranks_loaded(run: Run) -> Any:
    with ag.Tape() as tape:
        w = entered(run)
        x, t = (run.do(n, lambda x: cc.shard(x, "dp"), x=a) for n, a in (("shard x", X), ("shard t", T)))
        return finish(run, tape, x, w, t)


@program(squares, is_same=True, says="layout={'dp': R}")
def shard_of_a_tensor_that_all_ranks_loaded(run: Run) -> Any:
    with ag.Tape() as tape:
        w = entered(run)
        x, t = (run.do("shard " + n, lambda x: cc.shard(x, "dp"), x=run.leaf(n, a)) for n, a in (("x", X), ("t", T)))
        return finish(run, tape, x, w, t)


@program(squares, is_same=True, dp=2, tp=2)
def shard_of_arrays_on_two_axes(run: Run) -> Any:
    with ag.Tape() as tape:
        w = run.parameter("w", W)
        x, t = (run.do("shard " + n, lambda x: cc.shard(x, "dp"), x=run.leaf(n, a)) for n, a in (("x", X), ("t", T)))
        return finish(run, tape, x, w, t)


@program(squares, is_same=True, says="ag.constant(y)", tp=3)
def a_plain_target_of_all_ranks(run: Run) -> Any:
    with ag.Tape() as tape:
        return finish(run, tape, ag.tensor(X, {"tp": I}), run.parameter("w", W), T)


@program(squares, is_same=True, says="ag.constant(t)", tp=3)
def a_target_without_a_label(run: Run) -> Any:
    with ag.Tape() as tape:
        return finish(run, tape, ag.tensor(X, {"tp": I}), run.parameter("w", W), run.leaf("t", T))


@program(squares, is_same=True, says="ag.constant(x)", tp=3)
def nothing_has_a_label(run: Run) -> Any:
    with ag.Tape() as tape:
        return finish(run, tape, run.leaf("x", X), run.parameter("w", W), run.leaf("t", T))


@program(squares, says="cast(w, 'dp', to=R)")
def rows_of_the_ranks_without_a_label(run: Run) -> Any:
    at = run.rows()
    with ag.Tape() as tape:
        return finish(run, tape, run.leaf("x", X[at]), run.parameter("w", W), run.leaf("t", T[at]))


@program(squares, says="cast(w, 'dp', to=R)")
def plain_rows_of_the_ranks(run: Run) -> Any:
    at = run.rows()
    with ag.Tape() as tape:
        return finish(run, tape, X[at], run.parameter("w", W), T[at])


@program(squares, is_same=True, says="layout={..., 'tp': I} where x is made", dp=2, tp=2)
def rows_with_a_label_for_one_axis_of_two(run: Run) -> Any:
    at, label = run.rows(), {"dp": Shard(0)}
    with ag.Tape() as tape:
        return finish(run, tape, run.leaf("x", X[at], label), run.parameter("w", W), run.leaf("t", T[at], label))


@program(squares, is_same=True, says="layout={..., 'tp': R}", dp=2, tp=2)
def and_weights_that_enter_on_both(run: Run) -> Any:
    at, label = run.rows(), {"dp": Shard(0)}
    with ag.Tape() as tape:
        w = cc.cast(entered(run), "tp", to=R)
        x, t = run.leaf("x", X[at], label), run.leaf("t", T[at], label)
        loss = cc.all_reduce((((x @ w) - t) ** 2).sum(), "dp", to=I)
        return run.backward(tape, loss)


@program(squares, is_same=True, says="layout={..., 'tp': R}", dp=2, tp=2)
def and_a_cast_of_the_rows(run: Run) -> Any:
    at, label = run.rows(), {"dp": Shard(0)}
    with ag.Tape() as tape:
        w = cc.cast(entered(run), "tp", to=R)
        x = run.do("cast", lambda x: cc.cast(x, "tp", to=R), x=run.leaf("x", X[at], label))
        return finish(run, tape, x, w, run.leaf("t", T[at], label))


# -- labels that do not mix -------------------------------------------------------------------------------------------
B = T[0]


def shards(run: Run, array: Any, dim: int) -> Any:
    return cc.shard(ag.tensor(array, layout={"dp": R}), "dp", dim=dim)


def of_two(
    name: str, serial: Any, first: Any, second: Any, operation: Any, says: str = "", names: str = "x y"
) -> None:
    """A program of one operation, on operands that ``first(run)`` and ``second(run)`` make on the tape."""

    def body(run: Run) -> Any:
        with ag.Tape() as tape:
            operands = dict(zip(names.split(), (first(run), second(run)), strict=True))
            y = run.do("operation", operation, **operands)
            return run.backward(tape, run.do("square", lambda x: x * x, x=y).sum())

    body.__name__ = name
    program(serial, says=says)(body)


def partial(run: Run) -> Any:
    """The product x @ w as addends."""
    return shards(run, X, 1) @ shards_of_w(run)


def shards_of_w(run: Run) -> Any:
    return cc.shard(run.parameter("w", W), "dp", dim=0)


def replicated(array: Any) -> Any:
    return lambda run: ag.tensor(array, layout={"dp": R})


def invariant(array: Any) -> Any:
    return lambda run: ag.tensor(array, layout={"dp": I})


def i_w(run: Run) -> Any:
    return run.parameter("w", W)


of_two("partial_plus_replicated", lambda p: ((X @ p["w"] + B) ** 2).sum(), partial, replicated(B), np.add)
of_two("partial_plus_invariant", lambda p: ((X @ p["w"] + B) ** 2).sum(), partial, invariant(B), np.add)
of_two("partial_times_invariant", lambda p: ((X @ p["w"] * B) ** 2).sum(), partial, invariant(B), np.multiply)
of_two("partial_times_partial", lambda p: ((X @ p["w"] * (X @ p["w"])) ** 2).sum(), partial, lambda run: (
    shards(run, X, 1) @ cc.shard(run.parameters["w"], "dp", dim=0)), np.multiply)
of_two("partial_times_shard", lambda p: ((X @ p["w"] * T) ** 2).sum(), partial, lambda run: shards(run, T, 0),
       np.multiply, "reduce_scatter(x, 'dp', dim=0)")
of_two("shards_of_two_dimensions", lambda p: ((X @ p["w"] + T) ** 2).sum(), lambda run: (
    shards(run, X, 0) @ entered(run)), lambda run: shards(run, T, 1), np.add, "all_to_all")
of_two("shards_and_the_whole", lambda p: ((X @ p["w"] * T) ** 2).sum(), lambda run: (
    shards(run, X, 0) @ entered(run)), replicated(T), np.multiply)
of_two("shards_and_an_invariant_whole", lambda p: ((X @ p["w"] * T) ** 2).sum(), lambda run: (
    shards(run, X, 0) @ entered(run)), invariant(T), np.multiply)
of_two("columns_and_the_whole_weight", lambda p: ((X @ p["w"]) ** 2).sum(), lambda run: shards(run, X, 1), i_w,
       np.matmul, names="x w")
of_two("columns_and_a_replicated_weight", lambda p: ((X @ p["w"]) ** 2).sum(), lambda run: shards(run, X, 1), entered,
       np.matmul, names="x w")
of_two("rows_and_the_whole_weight", lambda p: ((X @ p["w"]) ** 2).sum(), lambda run: shards(run, X, 0), i_w,
       np.matmul, names="x w")
of_two("copies_and_the_whole_weight", lambda p: ((X @ p["w"]) ** 2).sum(), replicated(X), i_w, np.matmul, names="x w")
of_two("the_whole_and_a_divided_weight", lambda p: ((X @ p["w"]) ** 2).sum(), replicated(X), shards_of_w,
       np.matmul, names="x w")
of_two("an_invariant_whole_and_a_divided_weight", lambda p: ((X @ p["w"]) ** 2).sum(), invariant(X), shards_of_w,
       np.matmul, names="x w")


def of_one(name: str, serial: Any, first: Any, operation: Any, says: str = "") -> None:
    """A program of one operation or collective."""

    def body(run: Run) -> Any:
        with ag.Tape() as tape:
            y = run.do("operation", operation, x=first(run))
            return run.backward(tape, run.do("square", lambda x: x * x, x=y).sum())

    body.__name__ = name
    program(serial, says=says)(body)


def rows_of_y(run: Run) -> Any:
    return shards(run, X, 0) @ entered(run)


def whole(run: Run) -> Any:
    return ag.tensor(X, layout={"dp": R}) @ entered(run)


of_one("tanh_of_addends", lambda p: (np.tanh(X @ p["w"]) ** 2).sum(), partial, np.tanh, "all_reduce(x, 'dp', to=R)")
of_one("a_maximum_of_addends", lambda p: (np.max(X @ p["w"], 0) ** 2).sum(), partial, lambda x: np.max(x, 0))
of_one("a_sum_of_copies", lambda p: ((X @ p["w"]) ** 2).sum(), whole, lambda x: cc.all_reduce(x, "dp", to=R),
       "leave all_reduce out: x is the same on all ranks already")


@program(lambda p: ag.stop_gradient(squares(p)) * squares(p), says="leave all_reduce out: x is the same on all ranks")
def a_sum_of_a_constant(run: Run) -> Any:
    with ag.Tape() as tape:
        loss = cc.all_reduce(((run.sharded(X) @ entered(run) - run.sharded(T)) ** 2).sum(), "dp", to=I)
        value = run.do("operation", lambda x: cc.all_reduce(x, "dp", to=I), x=ag.stop_gradient(loss))
        return run.backward(tape, value * loss)


of_one("all_gather_of_addends", lambda p: ((X @ p["w"]) ** 2).sum(), partial, lambda x: cc.all_gather(x, "dp"))
of_one("reduce_scatter_of_parts", lambda p: ((X @ p["w"]) ** 2).sum(), rows_of_y, lambda x: cc.reduce_scatter(x, "dp"))
of_one("shard_of_addends", lambda p: ((X @ p["w"]) ** 2).sum(), partial, lambda x: cc.shard(x, "dp"))
of_one("shard_of_parts", lambda p: ((X @ p["w"]) ** 2).sum(), rows_of_y, lambda x: cc.shard(x, "dp"))
of_one("cast_of_addends", lambda p: ((X @ p["w"]) ** 2).sum(), partial, lambda x: cc.cast(x, "dp", to=R))
of_one("cast_of_parts", lambda p: ((X @ p["w"]) ** 2).sum(), rows_of_y, lambda x: cc.cast(x, "dp", to=R))
of_one("all_gather_of_copies", lambda p: ((X @ p["w"]) ** 2).sum(), whole, lambda x: cc.all_gather(x, "dp"))
