"""The unique elements of Tensors: NumPy's values, a gradient for the first occurrence, and layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.arrays.shape_only import Shaped
from autograd.errors import AbsentError, LayoutError, NotDifferentiable
from autograd.testing import check_grads
from collectives import I, P, R, Shard, V

Array = Any
X = numpy.array([0.3, -1.2, 0.3, 2.5, 0.7, -1.2])
FIRST = numpy.array([1.0, 1.0, 0.0, 1.0, 1.0, 0.0])
"""Which elements of `X` are the first occurrence of their value."""
NAMED = ("unique_all", "unique_counts", "unique_inverse")


def plain(found: Any) -> list[Array]:
    parts = found if isinstance(found, tuple) else (found,)
    return [numpy.asarray(x.array if isinstance(x, ag.Tensor) else x) for x in parts]


def draws() -> dict[str, Array]:
    rng = numpy.random.default_rng(0)
    few = rng.integers(0, 4, size=(3, 2, 4))
    return {
        "repeated": few + 0.5, "all different": rng.normal(size=(4, 3)), "none": numpy.zeros((0, 3)),
        "a number": numpy.array(2.5), "float16": (few + 0.5).astype("f2"), "complex": few + 1j * few.T.reshape(3, 2, 4),
        "with nan": numpy.where(few == 1, numpy.nan, few), "integers": few, "booleans": few > 1,
    }  # fmt: skip


@pytest.mark.parametrize("name", draws())
@pytest.mark.parametrize("recorded", [False, True])
def test_values_are_numpys(name: str, recorded: bool) -> None:
    x = draws()[name]
    w = ag.tensor(x, requires_grad=recorded and x.dtype.kind in "fc")
    options = [(), (True,), (True, True), (False, False, True), (True, True, True)]
    calls: list[Callable[..., Any]] = [
        lambda np, x, e=equal_nan, flags=flags: np.unique(x, *flags, equal_nan=e)
        for flags in options for equal_nan in (True, False)
    ]  # fmt: skip
    calls += [lambda np, x, axis=axis: np.unique(x, axis=axis, return_counts=True) for axis in range(-1, x.ndim)[:3]]
    calls += [lambda np, x, f=f: getattr(np, f)(x) for f in NAMED] + [lambda np, x: np.union1d(x, [2.5, 9.0])]
    calls += [lambda np, x: np.sort(np.unique_values(x)), lambda np, x: np.unique(x, return_inverse=True)]
    with ag.Tape():
        for f in calls[: None if x.ndim else 10]:
            expected = f(numpy, x)
            for found in (f(np, w), f(numpy, w), f(np, x)):
                assert len(plain(found)) == len(plain(expected))
                for a, b in zip(plain(found), plain(expected), strict=True):
                    assert a.dtype == b.dtype
                    numpy.testing.assert_array_equal(a, b)
                assert getattr(found, "_fields", ()) == getattr(expected, "_fields", ())


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c16"])
def test_the_gradient_goes_to_the_first_occurrence(dtype: str) -> None:
    x, ct = X.astype(dtype), numpy.random.default_rng(1).normal(size=4).astype(dtype)
    w = ag.Parameter(x)
    with ag.Tape() as tape:
        y = numpy.unique(w)
    tape.backward([y], [ct])
    expected = numpy.zeros(6, dtype)
    expected[[1, 0, 4, 3]] = ct
    assert w.grad is not None and w.grad.dtype == dtype
    numpy.testing.assert_array_equal(w.grad.numpy(), expected)


def test_derivatives_to_order_2_in_both_modes() -> None:
    for f in (np.unique, lambda x: np.unique(x.reshape(3, 2), axis=0), lambda x: np.union1d(x, x * 3),
              lambda x: np.unique_counts(x).values):  # fmt: skip
        x = numpy.random.default_rng(2).normal(size=6)
        check_grads(lambda x, f=f: f(x) ** 3, x, modes=["forward", "reverse"], order=2)
    tangent = numpy.random.default_rng(3).normal(size=6)
    numpy.testing.assert_array_equal(ag.jvp(np.unique, (X,), (tangent,))[1], tangent[[1, 0, 4, 3]])


def test_elements_that_were_joined_rebuild_the_array() -> None:
    def rebuilt(x: Any) -> Any:
        values, inverse = np.unique(x, return_inverse=True)
        return np.sum(values[inverse] * numpy.arange(1.0, 7))

    numpy.testing.assert_array_equal(ag.grad(rebuilt)(X), numpy.array([4.0, 8.0, 0.0, 4.0, 5.0, 0.0]))


def test_what_is_computed_outside_of_a_tape_keeps_its_origin() -> None:
    w = ag.Parameter(X)
    values = np.unique(w)
    with pytest.raises(ag.TapeError, match="no tape recorded"):
        values.sum().backward()


def test_a_captured_step_whose_number_of_elements_changes() -> None:
    def steps(wrap: Callable[[Any], Any]) -> Array:
        w = ag.Parameter(X)
        optimizer = ag.optim.SGD([w], lr=0.1)

        def step(target: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = np.sum((np.unique(w) - target) ** 2)
            tape.backward(loss)
            optimizer.step()
            return loss

        run = wrap(step)
        return numpy.array([float(run(numpy.float64(i))) for i in range(6)] + w.numpy().tolist())

    numpy.testing.assert_array_equal(steps(ag.capture), steps(lambda f: f))


# -- layouts ---------------------------------------------------------------------------------------------------------
def of_label(label: Any, f: Callable[[Any], Any]) -> list[Any]:
    """On three ranks: the labels of the parts of a result, and the gradient of a loss by its values."""

    def program() -> Any:
        with cc.Mesh(dp=3) as mesh:
            rank = mesh.axis("dp").rank
            x = ag.tensor(X + (int(rank) if label is V else 0), layout={"dp": label}, requires_grad=True)
            with ag.Tape() as tape:
                found = f(x)
                values = found[0] if isinstance(found, tuple) else found
                loss = (values * values).sum()
                if label is not I:
                    loss = cc.cast(loss, "dp", to=V) if label is R else loss
                    loss = cc.all_reduce(loss * (rank + 1), "dp", to=I)
            tape.backward(loss)
            parts = found if isinstance(found, tuple) else (found,)
            return [part.layout["dp"] for part in parts], x.grad.array, x.grad.layout["dp"]

    return cc.run(program, ranks=3)


CALLS: dict[str, Callable[[Any], Any]] = {
    "unique": np.unique,
    "unique, with indices": lambda x: np.unique(x, return_index=True, return_counts=True),
    "unique_all": np.unique_all,
    "union1d": lambda x: np.union1d(x, x),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("label", [R, I, V])
def test_labels_are_those_of_the_operand(name: str, label: Any) -> None:
    for rank, (labels, grad, of_grad) in enumerate(of_label(label, CALLS[name])):
        discrete = V if label is V else ag.C
        assert labels == [label] + [discrete] * (len(labels) - 1)
        assert of_grad is {R: P, I: I, V: V}[label]
        factor = 1 if label is I else rank + 1
        numpy.testing.assert_allclose(grad, 2 * factor * FIRST * (X + (rank if label is V else 0)))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_parts_and_addends_are_refused(name: str, ranks: int) -> None:
    def program() -> list[str]:
        texts = []
        with cc.Mesh(dp=ranks) as mesh:
            for label in (P, Shard(0)):
                x = ag.tensor(X + int(mesh.axis("dp").rank), layout={"dp": label})
                with pytest.raises(LayoutError, match="fix: all_") as caught:
                    CALLS[name](x)
                texts.append(str(caught.value))
            whole = cc.all_gather(x, "dp", dim=0)
            assert np.unique(whole).shape[0] >= 4
        return texts

    for partial, sharded in cc.run(program, ranks=ranks):
        assert "which is Partial" in partial and "Shard(0)" in sharded


def test_a_dry_run_has_no_values() -> None:
    calls = [*CALLS.values(), np.nonzero, np.argwhere, np.flatnonzero, lambda x: np.allclose(x, 0)]
    with cc.dry(ranks=4, mesh={"dp": 4}):
        for f in calls:
            with pytest.raises(AbsentError, match="reads values.*\n  fix: "):
                f(ag.tensor(X, layout={"dp": R}))
    with pytest.raises(AbsentError, match="unique"):
        numpy.unique(Shaped((3,)))


# -- selection by equality -------------------------------------------------------------------------------------------
Y = numpy.array([0.3, 2.5, 9.0])
SELECTIONS = {
    "intersect1d": (lambda x, y: np.intersect1d(x, y), numpy.array([1.0, 0, 0, 1, 0, 0])),
    "setdiff1d": (lambda x, y: np.setdiff1d(x, y), numpy.array([0.0, 1, 0, 0, 1, 0])),
    "setxor1d": (lambda x, y: np.setxor1d(x, y), numpy.array([0.0, 1, 0, 0, 1, 0])),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_selection_by_equality_is_refused_and_its_fix_is_right(name: str) -> None:
    f, selected = SELECTIONS[name]
    with pytest.raises(NotDifferentiable, match="Fix: ") as caught:
        ag.grad(lambda x: np.sum(f(x, Y) ** 2))(X)
    fix = str(caught.value).partition("Fix: ")[2].partition(", which selects")[0]

    def fixed(x: Any, y: Any) -> Any:
        return eval(fix, {"numpy": numpy, "x": x, "y": y})

    numpy.testing.assert_array_equal(fixed(X, Y), f(X, Y))
    numpy.testing.assert_array_equal(ag.grad(lambda x: np.sum(fixed(x, Y) ** 2))(X), 2 * X * selected)
