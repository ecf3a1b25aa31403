"""Wrong declarations: the checks find them, and so does the first use that relies on them."""

from __future__ import annotations

import re
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.engine import events
from autograd.engine.primitive import Primitive, op, registry
from autograd.errors import LayoutError, OptionError
from autograd.extend import Mix, Several, Sum, broadcast
from autograd.layouts.properties import dims_fault, linear_fault, repeatable_fault
from autograd.testing import DeclarationMismatch, check_adjoint, check_declaration, check_grads
from collectives import P, R, Shard

from ...grouped import in_groups
from ...proofs.operations import CASES

X = numpy.random.default_rng(0).standard_normal((4, 6))


def made(word: str, function: Any, adjoint: Any, **words: Any) -> Any:
    """An operation that leaves the registry at once."""
    name = words.pop("name", "planted")
    operation = (Several if "outputs" in words else op)(name, word, function, adjoint, **words)
    del registry[name]
    return operation


def same(shapes: Any, options: Any) -> Any:
    return [tuple(range(len(shape))) for shape in shapes]


def two(shapes: Any, options: Any) -> Any:
    return [same(shapes, options)] * 2


def like_matmul(shapes: Any, options: Any) -> Any:
    return [(0, Sum()), (Sum(), 1)]


COUNT = [0]


def counted(x: Any) -> Any:
    COUNT[0] += 1
    return x * COUNT[0]


def zeroed(x: Any) -> Any:
    y = x.copy()
    x[...] = 0
    return y


LIES: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "a constant is added": (made("a", lambda x: x + 1, lambda ct, y, x: ct, dims=broadcast), (X,), "not linear in x"),
    "a nonlinear function": (
        made("a", lambda x: numpy.maximum(x, 0), lambda ct, y, x: ct * (x > 0), saves="0", dims=broadcast),
        (X,), "not linear in x"),
    "additive for positive factors only": (
        made("a", lambda x: abs(x), lambda ct, y, x: ct * np.sign(x), saves="0", dims=broadcast), (X,), "not linear"),
    "linear in each and not jointly": (
        made("a a", lambda x, z: x * z, (lambda ct, y, x, z: ct * z, lambda ct, y, x, z: ct * x), saves="01",
             dims=broadcast), (X, X), "not linear in x and y"),
    "linear in the first of two": (
        made("a b", lambda x, z: x / z, (lambda ct, y, x, z: ct / z, lambda ct, y, x, z: -ct * x / z / z), saves="01",
             dims=broadcast), (X, 2 + X * X), "not linear in y"),
    "the second output is not linear": (
        made("a", lambda x: (x, x * x), (lambda cts, ys, x: sum(c for c in cts if c is not None),), dims=two,
             outputs=lambda x: [(x.shape, x.dtype)] * 2), (X,), "not linear in x"),
    "elementwise and it subtracts a mean": (
        made("a", lambda x: x - x.mean(0), lambda ct, y, x: ct - np.mean(ct, 0), dims=broadcast), (X,),
        "dimension 0 of x becomes dimension 0"),
    "softmax keeps its dimension": (
        made("N", lambda x: numpy.exp(x) / numpy.exp(x).sum(-1, keepdims=True), lambda ct, y, x: ct, dims=same), (X,),
        "dimension 1 of x becomes dimension 1"),
    "a reversal keeps its dimension": (
        made("a", lambda x: x[::-1], lambda ct, y, x: ct[::-1], dims=same), (X,), "dimension 0 of x becomes dim"),
    "a mean is stated as a sum": (
        made("a", lambda x: x.mean(0), lambda ct, y, x: ct / 4, dims=lambda shapes, options: [(Sum(), 0)]), (X,),
        "dimension 0 of x is summed over"),
    "a maximum is stated as a sum": (
        made("N", lambda x: x.max(0), lambda ct, y, x: ct, dims=lambda shapes, options: [(Sum(), 0)]), (X,),
        "dimension 0 of x is summed over"),
    "a transpose that keeps its dimensions": (
        made("a", lambda x: x.T, lambda ct, y, x: ct.T, dims=same), (X,), "have shapes"),
    "a batch dimension over which it normalises": (
        made("N a", lambda x, z: x @ z / numpy.linalg.norm(x), (None, lambda ct, y, x, z: ct), dims=like_matmul),
        (X, X.T), "dims states"),
    "pairs are exchanged, and dims has the factor of a reshape": (
        made("a", lambda x: x.reshape(-1)[::-1], lambda ct, y, x: ct[::-1],
             dims=lambda shapes, options: [((0, 6), Mix)]), (X,), "dimension 0 of x becomes dimension 0"),
    "random": (made("N", counted, lambda ct, y, x: ct, dims=lambda shapes, options: [(Mix, Mix)]), (X,), "two calls"),
    "it changes its operand": (
        made("N", zeroed, lambda ct, y, x: ct, dims=lambda shapes, options: [(Mix, Mix)]), (X,), "changes its operand"),
    "zero is not neutral": (
        made("a a", lambda x, z: 2 * x + z, (lambda ct, y, x, z: 2 * ct, lambda ct, y, x, z: ct), dims=broadcast,
             neutral_zero=True), (X, X), "neutral_zero"),
}  # fmt: skip


@in_groups()
@pytest.mark.parametrize("lie", LIES)
def test_each_check_finds_the_lie(lie: str) -> None:
    operation, xs, text = LIES[lie]
    xs = tuple(numpy.array(x) for x in xs)
    with pytest.raises(DeclarationMismatch, match=text):
        check_declaration(operation, *xs)

    def program(*zs: Any) -> Any:
        y = operation(*zs)
        return np.tanh(y[0] + y[1] if isinstance(y, tuple) else y)

    for check in (check_adjoint, check_grads):
        with pytest.raises((DeclarationMismatch, ValueError), match=f"{text}|read-only"):
            check(program, *[numpy.array(x) for x in xs])


class Calls:
    """Collects the calls of all operations."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def __call__(self, *event: Any) -> None: ...

    def see(self, phase: str, direction: str, name: str, facts: Any) -> None:
        if phase == "end" and direction == "forward" and isinstance(facts[0], Primitive):
            self.found.append(facts)


def test_every_declaration_of_ringtape_is_true() -> None:
    tested = set()
    for case in CASES:
        calls = Calls()
        with numpy.errstate(all="ignore"), events.listening(calls):
            case.f(*map(ag.tensor, case.variant(1, "float64")))
        for operation, xs, _, options in calls.found:
            arrays = [x.array if isinstance(x, ag.Tensor) else numpy.asarray(x) for x in xs]
            letters = dict.fromkeys(operation.letters(len(arrays)))
            faults = [linear_fault(operation, a, arrays, options) for a in letters if a not in "NS"]
            faults += [dims_fault(operation, arrays, options), repeatable_fault(operation, arrays, options)]
            assert not any(faults), f"{operation.name} {case.label}: {faults}"
            tested.add(operation.name)
    assert len(tested) > 200


# -- at the first use ------------------------------------------------------------------------------------------------


def squared() -> Any:
    return made("a", lambda x: x * x, lambda ct, y, x: 2 * ct * x, saves="0", dims=broadcast)


def on_one_rank(use: Any, label: Any, mode: str = "first") -> Any:
    cc.check(mode)
    try:
        with cc.Mesh(dp=1):
            return use(ag.tensor(X, layout={"dp": label}, global_shape=X.shape if isinstance(label, Shard) else None))
    finally:
        cc.check("first")


def test_a_partial_operand_of_what_is_not_linear_is_refused_at_the_first_use() -> None:
    use = squared()
    text = r"\{dp: P\}\).*'a', and it is not linear in x(.|\n)*all_reduce\(x, 'dp'\)"
    for _ in range(2):  # not only once
        with pytest.raises(LayoutError, match=text):
            on_one_rank(use, P)
    on_one_rank(use, R)  # legal
    on_one_rank(squared(), P, "off")
    with pytest.raises(LayoutError):
        on_one_rank(squared(), P, "ranks")


def test_the_offered_fix_has_the_serial_gradient() -> None:
    """N in the declaration, and the sum before the call."""
    use = made("N", lambda x: x * x, lambda ct, y, x: 2 * ct * x, saves="0", dims=broadcast)

    def program() -> Any:
        with cc.Mesh(dp=3) as mesh:
            rank = int(mesh.axis("dp").rank)
            x = ag.tensor(numpy.array_split(X, 3)[rank], layout={"dp": Shard(0)}, global_shape=X.shape)
            w = ag.Parameter(numpy.ones(6))
            with ag.Tape() as tape:
                total = (x * cc.cast(w, "dp", to=R)).sum(0)
                loss = use(cc.all_reduce(total, "dp", to=cc.I)).sum()
            tape.backward(loss)
            assert w.grad is not None
            return w.grad.numpy()

    for found in cc.run(program, ranks=3):
        numpy.testing.assert_allclose(found, 2 * X.sum(0) ** 2, rtol=1e-12)


def test_a_sharded_operand_of_what_mixes_is_refused_at_the_first_use() -> None:
    centred = made("a", lambda x: x - x.mean(0), lambda ct, y, x: ct - np.mean(ct, 0), dims=broadcast)
    with pytest.raises(LayoutError, match=r"dims states that dimension 0 of x(.|\n)*fix: Mix"):
        on_one_rank(centred, Shard(0))
    on_one_rank(centred, Shard(0), "off")
    on_one_rank(centred, R)
    several = LIES["the second output is not linear"][0]
    with pytest.raises(LayoutError, match="not linear"):
        on_one_rank(several, P)


def test_what_is_true_is_tested_once() -> None:
    calls = []

    def doubled(x: Any) -> Any:
        calls.append(x.shape)
        return x * 2

    use = made("a", doubled, lambda ct, y, x: ct * 2, dims=broadcast)
    with cc.Mesh(dp=1):
        x = ag.tensor(X, layout={"dp": P})
        use(x)
        assert len(calls) == 4  # three of the test
        for rows in (x, x[:2], x[:3]):
            use(rows)
        assert len(calls) == 7


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128", "int64", "uint8"])
def test_what_is_true_passes_in_every_dtype(dtype: str) -> None:
    x = numpy.abs(10 * X).astype(dtype)
    check_declaration(made("a", lambda x: x * 2, lambda ct, y, x: ct * 2, dims=broadcast), x)
    check_declaration(made("a", lambda x: x.sum(0), lambda ct, y, x: ct, dims=lambda shapes, options: [(Sum(), 0)]), x)
    with pytest.raises(DeclarationMismatch):
        check_declaration(made("a", lambda x: x + 1, lambda ct, y, x: ct, dims=broadcast), x)


# -- names -----------------------------------------------------------------------------------------------------------


def declared(name: str, **words: Any) -> Any:
    return op(name, "a", lambda x: x * 2, lambda ct, y, x: ct * 2, dims=broadcast, **words)


@pytest.fixture
def clean() -> Any:
    before = dict(registry)
    yield
    registry.clear()
    registry.update(before)


@pytest.mark.usefixtures("clean")
def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'exp'.*elementwise.py:\d+(.|\n)*replace=True(.|\n)*test_declaration.py"):
        op("exp", "N", numpy.exp, lambda ct, y, x: ct * y, saves="y", dims=broadcast)
    assert np.exp is registry["exp"] or registry["exp"].function is numpy.exp
    first = declared("twice (example)")
    assert declared("twice (example)") is registry["twice (example)"] is not first  # the same line again
    with pytest.raises(OptionError, match="'twice"):
        op("twice (example)", "a", lambda x: x * 3, lambda ct, y, x: ct * 3, dims=broadcast)
    third = op("twice (example)", "a", lambda x: x * 3, lambda ct, y, x: ct * 3, dims=broadcast, replace=True)
    assert registry["twice (example)"] is third


@pytest.mark.usefixtures("clean")
def test_a_notebook_cell_is_executed_again() -> None:
    """A cell is compiled under a file name of its own each time; its functions are of the module ``__main__``."""
    cell = 'made = op("cell (example)", "a", lambda x: x * {0}, lambda ct, y, x: ct * {0})'
    names = {"op": op, "__name__": "__main__"}
    for i, factor in enumerate((2, 3)):
        exec(compile("\n" * i + cell.format(factor), f"/tmp/ipykernel/{i}.py", "exec"), names)
    assert registry["cell (example)"](ag.tensor(1.0)).item() == 3
    function = 'def f(x): return x * {0}\nmade = op("cell (example 2)", "a", f, lambda ct, y, x: ct * {0})'
    for i, factor in enumerate((2, 3)):  # a module that is edited and loaded again
        exec(compile("\n" * i + function.format(factor), "/tmp/module.py", "exec"), names)
    with pytest.raises(OptionError, match=re.escape("'cell (example)'")):
        exec(compile(cell.format(4), "/tmp/other.py", "exec"), {**names, "__name__": "other"})
