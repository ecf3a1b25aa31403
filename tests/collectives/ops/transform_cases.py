"""Transforms through collectives, against the dense serial reference: what each rank runs, on threads and under MPI.

The argument has N elements, in every layout (shards are uneven, and empty on some ranks where there are more ranks than
elements). The function gathers it, computes, and returns its value in every layout. The results of the ranks are
assembled by their labels and compared with the result of one process.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import random
from collectives import I, P, R, Shard, V

Case = tuple[str, Callable[[], None]]
LABELS = {"R": R, "I": I, "V": V, "P": P, "S": Shard(0)}
MODES = (None, "reverse", "forward")
ORDERS = (None, *(f"{a}-over-{b}" for a in ("forward", "reverse") for b in ("forward", "reverse")))
ROWS = 4
_rng = numpy.random.default_rng(0)
MATRIX = _rng.standard_normal((ROWS, 7))
POINT = _rng.standard_normal(7)
VECTOR = _rng.standard_normal(7)
WEIGHTS = _rng.standard_normal(ROWS)


# -- the function, on one process and on many --------------------------------------------------------------------------


def curve(x: Any) -> Any:
    """R^N -> R^4."""
    n = int(x.shape[0])
    matrix = ag.constant(MATRIX[:, :n]) if isinstance(x, ag.Tensor) and x.layout is not None else MATRIX[:, :n]
    return np.tanh(matrix @ x) + np.sum(x * x) * 0.1


def loss(x: Any) -> Any:
    return np.sum(curve(x) ** 3)


def whole(x: Any) -> Any:
    """Any layout -> R, by the collective for that layout."""
    label = x.layout["dp"]
    if label is I:
        return cc.cast(x, "dp", to=R)
    if label is P:
        return cc.all_reduce(x, "dp", to=R)
    return x if label is R else cc.all_gather(x, "dp", dim=0)


def handed_out(y: Any, label: Any) -> Any:
    """R -> any layout."""
    if label is R:
        return y
    if label is V or isinstance(label, Shard):
        y = cc.shard(y, "dp", dim=0)
        return cc.cast(y, "dp", to=V) if label is V else y
    return cc.cast(y, "dp", to=label)


def given(value: numpy.ndarray, label: Any) -> Any:
    """This rank's part of a value, as a Tensor of a layout."""
    rank, size = int(cc.current_mesh().axis("dp").rank), cc.current_mesh().axis("dp").size
    if label is P:
        addends = numpy.random.default_rng(5).standard_normal((size, *value.shape))
        return ag.tensor((addends - (addends.sum(0) - value) / size)[rank], {"dp": P})
    part = value[numpy.array_split(numpy.arange(len(value)), size)[rank]]
    if label is V:
        return ag.tensor(part, {"dp": V})
    if isinstance(label, Shard):
        return ag.tensor(part, {"dp": label}, global_shape=value.shape)
    return ag.tensor(value.copy(), {"dp": label})


# -- what the ranks hold, put together ---------------------------------------------------------------------------------


def together(x: Any, dim: int = 0) -> numpy.ndarray:
    """The whole value on every rank, by plain Python; `dim` is where the parts of a V lie."""
    label = x.layout["dp"]
    parts = [pickle.loads(data) for data in cc.world().exchange(pickle.dumps(numpy.asarray(x.array)))]
    if label is P:
        return numpy.asarray(sum(parts))
    if label is V or isinstance(label, Shard):
        return numpy.concatenate(parts, label.dim if isinstance(label, Shard) else dim)
    for part in parts[1:]:
        numpy.testing.assert_array_equal(part, parts[0])
    return numpy.asarray(parts[0])


def expect(x: Any, expected: Any, dim: int = 0, tolerance: float = 1e-11) -> None:
    got = together(x, dim)
    assert got.shape == numpy.shape(expected), (got.shape, numpy.shape(expected), x.layout)
    numpy.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def dual(label: Any) -> Any:
    return {R: P, P: R}.get(label, label)


# -- cases -------------------------------------------------------------------------------------------------------------


def cases(n: int, every: int = 1) -> Iterator[Case]:
    """All cases for an argument of n elements; each `every`-th."""
    yield from itertools.islice(_cases(POINT[:n], VECTOR[:n]), 0, None, every)


def _cases(x: numpy.ndarray, v: numpy.ndarray) -> Iterator[Case]:
    n = len(x)
    jac, hess, gradient = ag.jacobian(curve)(x), ag.hessian(loss)(x), ag.grad(loss)(x)
    third = ag.grad(lambda x: np.sum(np.sin(ag.hessian(loss)(x) * 0.1)))(x)

    def objective(x: Any) -> Any:
        return cc.cast(loss(whole(x)), "dp", to=I)

    for (a, la), (b, lb), mode in itertools.product(LABELS.items(), LABELS.items(), MODES):

        def one_jacobian(la: Any = la, lb: Any = lb, mode: Any = mode) -> None:
            found = ag.jacobian(lambda x: handed_out(curve(whole(x)), lb), mode=mode)(given(x, la))
            assert found.layout["dp"] == _expected_label(la, lb, mode), found.layout
            expect(found, jac, dim=0 if mode == "forward" else 1)

        yield f"jacobian {a}->{b} {mode} n={n}", one_jacobian

    for (a, la), mode, wrap in itertools.product(LABELS.items(), ORDERS, (lambda f: f, ag.checkpoint)):

        def one_hessian(la: Any = la, mode: Any = mode, wrap: Any = wrap) -> None:
            found = ag.hessian(wrap(objective), mode=mode)(given(x, la))
            rows_first = mode is None or mode.startswith("reverse")
            expect(found, hess, dim=1 if rows_first else 0)

        yield f"hessian {a} {mode} {'checkpoint' if wrap is ag.checkpoint else ''} n={n}", one_hessian

    for (a, la), wrap in itertools.product(LABELS.items(), (lambda f: f, ag.checkpoint)):

        def products(la: Any = la, wrap: Any = wrap) -> None:
            point, vector = given(x, la), given(v, la)
            f, y = wrap(objective), wrap(lambda x: curve(whole(x)))
            expect(ag.grad(f)(point), gradient)
            expect(ag.hvp(f, (point,), (vector,))[1], hess @ v)
            product, g = ag.make_hvp(f)(point)
            assert g.layout["dp"] == dual(la)
            expect(g, gradient)
            expect(product(vector), hess @ v)
            expect(ag.hessian_tensor_product(f)(point, vector), hess @ v)
            expect(ag.make_jvp(y)(point)(vector)[1], jac @ v)
            expect(ag.make_jvp_reversemode(y)(point)(vector), jac @ v)
            expect(ag.elementwise_grad(y)(point), jac.sum(0))
            expect(ag.deriv(y)(point), jac.sum(1))
            half = lambda y: cc.cast(np.sum(y * y) * 0.5, "dp", to=I)
            expect(ag.make_ggnvp(y, half)(point)(vector), jac.T @ jac @ v)
            weights = given(WEIGHTS, P)  # dual to the output, which is R
            expect(ag.vjp(y, point)[1](weights), WEIGHTS @ jac)
            expect(ag.tensor_jacobian_product(y)(point, weights), WEIGHTS @ jac)

        def penalty(la: Any = la, wrap: Any = wrap) -> None:
            """A gradient of a function of a gradient, with collectives on both levels; and of a Hessian."""

            def of_gradient(x: Any) -> Any:
                g = whole(ag.grad(wrap(objective))(x))
                return cc.cast(np.sum(g * g), "dp", to=I)

            expect(ag.grad(of_gradient)(given(x, la)), 2 * hess @ gradient)

        yield f"products {a} {'checkpoint' if wrap is ag.checkpoint else ''} n={n}", products
        yield f"gradient of a gradient {a} {'checkpoint' if wrap is ag.checkpoint else ''} n={n}", penalty

    def of_hessian() -> None:
        def f(x: Any) -> Any:
            h = ag.hessian(objective)(x)
            return cc.cast(np.sum(np.sin(cc.all_reduce(h, "dp", to=R) * 0.1)), "dp", to=I)

        expect(ag.grad(f)(given(x, R)), third, tolerance=1e-9)

    yield f"third derivative n={n}", of_hessian
    yield f"numbers that vary n={n}", varying_numbers
    yield f"containers n={n}", containers
    yield f"a cotangent on one rank n={n}", one_rank_uses_it
    yield f"started and waited for n={n}", started_and_waited_for
    yield f"a plan n={n}", a_plan
    yield f"random numbers n={n}", random_numbers
    yield f"parts that do not fit n={n}", parts_that_do_not_fit


def _expected_label(argument: Any, value: Any, mode: Any) -> Any:
    """Reverse: rows are gradients. Forward: columns are tangents. The cheaper one only where both are Invariant."""
    if mode == "forward":
        return value
    label = dual(argument)
    return Shard(1) if isinstance(label, Shard) else label


def varying_numbers() -> None:
    """A number on each rank: rows in order of the ranks."""
    rank, size = int(cc.world().rank), cc.world().size

    def f(x: Any) -> Any:
        return x[0] * x[0] * (rank + 1.0) + cc.all_reduce(x, "dp", to=R)[0] * 10.0

    x = ag.tensor(numpy.array([rank + 2.0]), {"dp": V})
    found = ag.jacobian(f)(x)
    points = numpy.arange(size) + 2.0
    expect(found, numpy.diag(2 * points * (numpy.arange(size) + 1.0)) + 10.0, dim=1)
    assert found.array.shape == (size, 1)


def containers() -> None:
    """Leaves of several layouts at once."""
    x, w = POINT[:5], WEIGHTS[:3]

    def f(p: Any) -> Any:
        y = whole(p["x"]) * np.sum(whole(p["rest"][0]))
        return {"y": handed_out(y, Shard(0)), "total": cc.cast(np.sum(y * y), "dp", to=I)}

    for la, lb in ((R, Shard(0)), (Shard(0), I), (V, P)):
        found = ag.jacobian(f)({"x": given(x, la), "rest": (given(w, lb), None)})
        s = w.sum()
        expect(found["y"]["x"], numpy.eye(5) * s, dim=1)
        expect(found["y"]["rest"][0], numpy.repeat(x[:, None], 3, 1), dim=1)
        expect(found["total"]["x"], 2 * x * s * s)
        expect(found["total"]["rest"][0], numpy.full(3, 2 * s * numpy.sum(x * x)))
        assert found["y"]["rest"][1] is None


def one_rank_uses_it() -> None:
    """On the other ranks no cotangent reaches the checkpoint. They must run its communications nevertheless."""
    for wrap in (lambda f: f, ag.checkpoint):

        def f(x: Any, wrap: Any = wrap) -> Any:
            y = wrap(lambda x: cc.all_reduce(x * x, "dp", to=R))(x)
            mine = cc.cast(np.sum(y * y), "dp", to=V) if int(cc.world().rank) == 0 else ag.tensor(0.0)
            return cc.all_reduce(mine, "dp", to=I)

        x = ag.tensor(numpy.full(2, cc.world().rank + 1.0), {"dp": V})
        y = sum((r + 1.0) ** 2 for r in range(cc.world().size))
        numpy.testing.assert_allclose(ag.grad(f)(x).array, 4 * y * x.array, rtol=1e-12)
        tangent = ag.jvp(f, (x,), (x,))[1]
        numpy.testing.assert_allclose(tangent.array, 8 * y * y, rtol=1e-12)


def started_and_waited_for() -> None:
    """Nonblocking calls inside what is run again: each run has its own."""
    x = given(POINT[:5], Shard(0))

    def f(x: Any) -> Any:
        first, second = cc.all_reduce_async(np.sum(x * x), "dp", to=R), cc.all_gather_async(x, "dp", dim=0)
        return np.sin(second) * first

    objective = lambda wrap: lambda x: cc.cast(np.sum(wrap(f)(x) ** 2) + np.sum(wrap(f)(x)), "dp", to=I)
    plain, again = (objective(wrap) for wrap in (lambda f: f, ag.checkpoint))
    expect(ag.grad(again)(x), together(ag.grad(plain)(x)))
    expect(ag.jvp(again, (x,), (x,))[1], together(ag.jvp(plain, (x,), (x,))[1]))
    expect(ag.hessian(again)(x), together(ag.hessian(plain)(x)))


def a_plan() -> None:
    """A plan reads a tape without running it, so a checkpoint that communicates is refused and any other is not."""
    w = ag.Parameter(numpy.ones(2))
    for f, fine in ((lambda x: np.sin(x), True), (lambda x: cc.cast(cc.all_reduce(x, "dp", to=R), "dp", to=V), False)):
        with ag.Tape() as tape:
            ag.checkpoint(f)(cc.cast(cc.cast(w, "dp", to=R), "dp", to=V))
        try:
            tape.plan()
        except ag.TapeError as error:
            assert not fine and "checkpoint" in str(error)
        else:
            assert fine


def random_numbers() -> None:
    """The same mask in the second run, on all ranks."""

    def drop(x: Any) -> Any:
        return whole(x) * ag.constant(random.uniform(random.next_key("mask"), (5,)))

    found = []
    for wrap in (lambda f: f, ag.checkpoint):
        random.seed(7)
        f = lambda x, wrap=wrap: cc.cast(np.sum(wrap(drop)(x) ** 2) + np.sum(wrap(drop)(x)), "dp", to=I)
        found.append(together(ag.grad(f)(given(POINT[:5], Shard(0)))))
    numpy.testing.assert_array_equal(*found)


def parts_that_do_not_fit() -> None:
    """Varying values whose rows differ in length: every rank raises the error, and none waits."""
    rank, size = int(cc.world().rank), cc.world().size
    x = ag.tensor(numpy.ones((2, 1 + rank % 2)), {"dp": V})
    if size == 1:
        assert ag.jacobian(lambda x: x * 2.0)(x).array.shape == (2, 1, 2, 1)
        return
    try:
        ag.jacobian(lambda x: x * 2.0)(x)
    except ag.ShapeError as error:
        assert "(2, 2)" in str(error) and "ravel" in str(error)
    else:
        raise AssertionError("rows of different lengths were joined")
    flat = ag.jacobian(lambda x: np.ravel(x) * 2.0)(x)
    assert flat.array.shape == (sum(2 * (1 + r % 2) for r in range(size)), *x.array.shape)


# -- two axes ----------------------------------------------------------------------------------------------------------


def two_axes(outer: int, inner: int) -> None:
    """A matrix cut along both axes, and one cut twice along the same dimension: the index is that of the whole."""
    value = _fixed((5, 3))
    serial = lambda x: np.sum(np.sin(x) ** 2, 1) * x[0, 0]
    jac, hess = ag.jacobian(serial)(value), ag.hessian(lambda x: np.sum(serial(x) ** 2))(value)
    with cc.Mesh(a=outer, b=inner) as mesh:
        at = [int(r) for r in mesh.place]
        rows = numpy.array_split(numpy.arange(5), outer)[at[0]]
        for layout in ({"a": Shard(0), "b": Shard(1)}, {"a": Shard(0), "b": Shard(0)}, {"a": R, "b": Shard(1)}):
            part = value if layout["a"] is R else value[rows]
            if layout["b"] == Shard(1):
                part = part[:, numpy.array_split(numpy.arange(3), inner)[at[1]]]
            else:
                part = part[numpy.array_split(numpy.arange(len(part)), inner)[at[1]]]
            x = ag.tensor(part, layout, global_shape=value.shape)

            def made_whole(x: Any, layout: Any = layout) -> Any:
                x = cc.all_gather(x, "b", dim=layout["b"].dim)
                return x if layout["a"] is R else cc.all_gather(x, "a", dim=0)

            found = ag.jacobian(lambda x, w=made_whole: serial(w(x)))(x)
            _expect_on_two(found, jac, layout, 1)
            f = lambda x, w=made_whole: cc.cast(np.sum(serial(w(x)) ** 2), ("a", "b"), to=I)
            for wrap in (lambda f: f, ag.checkpoint):
                _expect_on_two(ag.hessian(wrap(f))(x), hess, layout, 2)


def _fixed(shape: tuple[int, ...]) -> numpy.ndarray:
    return numpy.random.default_rng(3).standard_normal(shape)


def _expect_on_two(found: Any, expected: numpy.ndarray, layout: Any, by: int) -> None:
    """Put parts together over b, then over a."""
    mesh = cc.current_mesh()
    labels = found.layout
    told = [pickle.loads(d) for d in mesh.ranks.exchange(pickle.dumps(numpy.asarray(found.array)))]
    table = [told[i * mesh.sizes[1] : (i + 1) * mesh.sizes[1]] for i in range(mesh.sizes[0])]

    def joined(parts: list[Any], label: Any) -> Any:
        if isinstance(label, Shard):
            return numpy.concatenate(parts, label.dim)
        return sum(parts) if label is P else parts[0]

    got = joined([joined(row, labels["b"]) for row in table], labels["a"])
    assert labels["b"] == Shard(layout["b"].dim + by), labels
    numpy.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-11)
