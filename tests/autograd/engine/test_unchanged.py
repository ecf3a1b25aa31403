"""Operations that change nothing return their operand; a leaf may itself be what a tape differentiates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from collectives import I, R, V

SAME: dict[str, Callable[[Any], Any]] = {
    "itself": lambda w: w,
    "reshape": lambda w: w.reshape(w.shape),
    "reshape of numpy": lambda w: np.reshape(w, w.shape),
    "astype": lambda w: w.astype(w.dtype),
    "squeeze": np.squeeze,
    "positive": lambda w: +w,
    "copy": np.copy,
    "real": np.real,
    "conj": np.conj,
    "asarray": np.asarray,
    "plus 0": lambda w: w + 0,
    "atleast": np.atleast_1d,
    "diff of order 0": lambda w: np.diff(w, 0),
    "ravel": np.ravel,
    "transpose": np.transpose,
    "power of 1": lambda w: w**1,
    "sum over no axis": lambda w: np.sum(w, ()),
    "everything": lambda w: w[...],
    "broadcast_to": lambda w: np.broadcast_to(w, w.shape),
}
CT = numpy.array([0.5, -2.0, 3.0])


def leaf(kind: str) -> Any:
    return ag.Parameter([1.0, 2.0, 3.0]) if kind == "Parameter" else ag.tensor([1.0, 2.0, 3.0], requires_grad=True)


@pytest.mark.parametrize("kind", ["Parameter", "tensor"])
@pytest.mark.parametrize("name", SAME)
def test_of_a_leaf(name: str, kind: str) -> None:
    """Alone, used too, before and after its use, in reverse, with `wanted`, deferred, retained, and in forward mode."""
    f = SAME[name]
    for used in (False, True):
        for options in ({}, {"retain": True}, {"defer": True}, {"wanted": True}):
            w = leaf(kind)
            with ag.Tape() as tape:
                y = f(w)
                z = w * w if used else None
            outputs, cts = ([y, z], [CT, CT]) if z is not None else ([y], [CT])
            expected = CT + (2 * w.numpy() * CT if used else 0)
            if options.get("wanted"):
                (g,) = tape.backward(outputs, cts, wanted=[w])
                assert numpy.allclose(g, expected) and w.grad is None
                continue
            rest = tape.backward(outputs, cts, **options)
            if rest is not None:
                rest()
            assert numpy.allclose(w.grad.numpy(), expected)
            if "retain" in options:
                tape.backward(outputs, cts)
                assert numpy.allclose(w.grad.numpy(), 2 * expected)
    w = leaf(kind)
    with ag.Tape() as tape:
        y, z = f(w), w * 2.0
    first, second = tape.forward([w], [CT], [y, z])
    assert first.tolist() == CT.tolist() and second.tolist() == (2 * CT).tolist()


@pytest.mark.parametrize("name", SAME)
def test_in_transforms(name: str) -> None:
    f = SAME[name]
    x = numpy.array([1.0, 2.0, 3.0])
    assert ag.vjp(f, x)[1](CT).tolist() == CT.tolist()
    assert ag.jvp(f, (x,), (CT,))[1].tolist() == CT.tolist()
    assert ag.hessian(lambda x: np.sum(f(f(x) ** 2)))(x).tolist() == numpy.diag([2.0, 2.0, 2.0]).tolist()


@pytest.mark.parametrize("name", SAME)
def test_of_nested_tapes(name: str) -> None:
    """An inner tape; a second sweep of the outer one over the recorded first; a leaf that enters after the interval."""
    f, w = SAME[name], leaf("Parameter")
    with ag.Tape() as outer:
        with ag.Tape() as inner:
            y = f(w)
        v = w * 3.0
        (g,) = inner.backward(y, CT, wanted=[w], record=True)
        loss = np.sum(v * v)
    assert numpy.allclose(getattr(g, "array", g), CT)
    outer.backward(loss)
    assert numpy.allclose(w.grad.numpy(), 18 * w.numpy())


def test_what_has_no_gradient_is_refused() -> None:
    w = ag.Parameter([1.0])
    with ag.Tape() as tape:
        loss = (w * w).sum()
    tape.backward(loss)
    with pytest.raises(ag.TapeError, match="second backward"):
        tape.backward(w)
    with pytest.raises(ag.TapeError, match="second backward"):
        tape.backward(ag.Parameter([1.0]))
    with ag.Tape() as tape:
        tape.watch(w)
    with pytest.raises(ag.TapeError, match="depends on no leaf"):
        tape.backward(ag.tensor([1.0]))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_on_a_mesh(ranks: int) -> None:
    """A Parameter is I: one value, counted once. A tensor that is V differs between ranks, and is no objective."""

    def program(mesh: Any) -> Any:
        found = []
        for f in (SAME["itself"], SAME["reshape"], SAME["positive"]):
            w = ag.Parameter(2.0)
            with ag.Tape() as tape:
                y = f(w)
            tape.backward(y)
            found.append((float(w.grad.numpy()), w.grad.layout["dp"] is I))
            both = ag.Parameter(2.0)
            with ag.Tape() as tape:
                own = ag.tensor(1.0 + int(mesh.place[0]), {"dp": V})
                loss = cc.all_reduce(cc.cast(both, "dp", to=R) * own, "dp", to=I)
                same = f(both)
            tape.backward([loss, same])
            found.append((float(both.grad.numpy()), True))
        v = ag.tensor(1.0, {"dp": V}, requires_grad=True)
        with ag.Tape() as tape:
            pass
        with pytest.raises(ag.LayoutError, match="V"):
            tape.backward(v)
        return found

    def run() -> Any:
        with cc.Mesh(dp=ranks) as mesh:
            return program(mesh)

    total = 1.0 + sum(1.0 + r for r in range(ranks))
    for found in cc.run(run, ranks=ranks):
        assert found == [(1.0, True), (total, True)] * 3
