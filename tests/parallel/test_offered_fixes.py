"""Texts of errors: each offers what leads to the program with the serial gradient, and the program is run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from collectives import I, R, V

X = numpy.random.default_rng(3).normal(size=(7, 2))
Y = numpy.random.default_rng(4).normal(size=(7, 2))
START = numpy.array([[0.3, -0.7], [0.2, 0.4]])


def run(body: Callable[[Any], Any], ranks: int = 3) -> Any:
    """The result of rank 1 of a program on a mesh."""

    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            return body(mesh)

    return cc.run(program, ranks)[min(1, ranks - 1)]


def refusal(body: Callable[[Any], Any], kind: Any = ag.LayoutError, ranks: int = 3) -> str:
    with pytest.raises(kind) as caught:
        run(body, ranks)
    return str(caught.value)


def rows(a: Any) -> Any:
    return cc.shard(ag.tensor(a, {"dp": R}), "dp")


# -- an update by hand -------------------------------------------------------------------------------------------------
def trained(update: Callable[[list[Any]], list[Any]], steps: int = 3) -> Callable[[Any], Any]:
    """Weights after steps of gradient descent on the sum of squares."""

    def body(mesh: Any) -> Any:
        x, weights = rows(X), [ag.Parameter(START)]
        for _ in range(steps):
            with ag.Tape() as tape:
                p = weights[0]
                loss = cc.all_reduce(((x @ cc.cast(p, "dp", to=R)) ** 2).sum(), "dp", to=I) / x.global_shape[0]
            tape.backward(loss)
            weights = update(weights)
        return weights[0].numpy()

    return body


def by_data(weights: list[Any]) -> list[Any]:
    for p in weights:
        p.data = p.numpy() - 0.1 * p.grad.numpy()
        p.zero_grad()
    return weights


def test_an_updated_weight_that_is_no_leaf() -> None:
    text = refusal(trained(lambda weights: [p - 0.1 * p.grad for p in weights]), ag.TapeError)
    assert text.startswith("p: f64[2,2] {dp: I} was computed from a value that requires a gradient while no tape")
    assert "  fix: p.data = p.numpy() - lr * p.grad.numpy() in place of p = p - lr * p.grad, or p = ag.Param" in text

    def new_leaf(weights: list[Any]) -> list[Any]:
        return [ag.Parameter((p - 0.1 * p.grad).numpy()) for p in weights]

    serial = START
    for _ in range(3):
        serial = serial - 0.1 * 2 * X.T @ (X @ serial) / len(X)
    for update in (by_data, new_leaf):
        numpy.testing.assert_allclose(run(trained(update)), serial)


def test_a_sharded_value_from_outside_of_the_tape_is_no_weight() -> None:
    def body(mesh: Any) -> Any:
        h = rows(X) @ cc.cast(ag.Parameter(START), "dp", to=R)
        with ag.Tape():
            return h * 2

    text = refusal(body, ag.TapeError)
    assert "fix: compute it inside the tape's block" in text and "updated weight" not in text


# -- parts and wholes --------------------------------------------------------------------------------------------------
def fitted(target: Callable[[], Any]) -> Callable[[Any], Any]:
    """The gradient of the squared distance to a target."""

    def body(mesh: Any) -> Any:
        x, w = rows(X), ag.Parameter(START)
        with ag.Tape() as tape:
            y = target()
            loss = cc.all_reduce(((x @ cc.cast(w, "dp", to=R) - y) ** 2).sum(), "dp", to=I)
        tape.backward(loss)
        return w.grad.numpy()

    return body


def test_a_constant_that_has_all_rows() -> None:
    text = refusal(fitted(lambda: ag.constant(Y)))
    assert "  fix: shard(ag.tensor(y, layout={'dp': R}), 'dp', dim=0)   (this rank's part)" in text
    serial = 2 * X.T @ (X @ START - Y)
    for target in (lambda: cc.shard(ag.tensor(ag.constant(Y), layout={"dp": R}), "dp", dim=0), lambda: rows(Y)):
        numpy.testing.assert_allclose(run(fitted(target)), serial)


def stencil(padded: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The gradient of a sum of squared second differences, with zeros at the ends."""

    def body(mesh: Any) -> Any:
        u = ag.Parameter(rows(X[:, 0]))
        with ag.Tape() as tape:
            p = padded(u)
            loss = cc.all_reduce(((p[2:] - 2 * u + p[:-2]) ** 2).sum(), "dp", to=I)
        tape.backward(loss)
        return cc.all_gather(u.grad, "dp", to=I).numpy()

    return body


def test_parts_that_are_padded() -> None:
    text = refusal(stencil(lambda u: np.pad(u, 1)))
    assert text.startswith("pad(u: f64[") and "and pad mixes along dimension 0" in text
    assert "  or:  halo_exchange(u, 'dp', 1)" in text
    text = refusal(stencil(lambda u: np.concatenate([np.zeros(1), u, np.zeros(1)])))
    assert text.startswith("concatenate(") and "  or:  halo_exchange(u, 'dp', 1), if the neighbours of a part" in text
    d = numpy.eye(7, k=1) - 2 * numpy.eye(7) + numpy.eye(7, k=-1)
    found = run(stencil(lambda u: cc.halo_exchange(u, "dp", 1)))
    numpy.testing.assert_allclose(found, 2 * d.T @ d @ X[:, 0])


def test_a_varying_weight_that_is_one_for_all_ranks() -> None:
    def body(k: Callable[[], Any]) -> Callable[[Any], Any]:
        def inner(mesh: Any) -> Any:
            x, factor = rows(X), k()
            with ag.Tape() as tape:
                loss = cc.all_reduce(((x * cc.cast(factor, "dp", to=R)) ** 2).sum(), "dp", to=I)
            tape.backward(loss)
            return factor.grad.numpy()

        return inner

    text = refusal(body(lambda: ag.Parameter(0.5, {"dp": V})))
    assert "  fix: factor = ag.Parameter(...) without a label and this cast, if it is one value for all ranks" in text
    numpy.testing.assert_allclose(run(body(lambda: ag.Parameter(0.5))), (X**2).sum())


# -- objectives --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_texts_about_an_objective_fit_the_number_of_ranks(ranks: int) -> None:
    def replicated(mesh: Any) -> None:
        w = ag.Parameter(START)
        with ag.Tape() as tape:
            loss = (cc.cast(w, "dp", to=R) ** 2).sum()
        tape.backward(loss)

    def varying(mesh: Any) -> None:
        w = ag.Parameter(START, {"dp": V})
        with ag.Tape() as tape:
            loss = (w**2).sum()
        tape.backward(loss)

    text = refusal(replicated, ranks=ranks)
    assert ("count once per rank, 3 times. " if ranks == 3 else "count once per rank. ") in text
    assert "fix: cast(loss, 'dp', to=I)   (inside the tape's block; free" in text
    text = refusal(varying, ranks=ranks)
    assert ("Varying: 3 different numbers, and" if ranks == 3 else "Varying: a number of each rank, and") in text


# -- calls of several ranks --------------------------------------------------------------------------------------------
def test_leaves_that_differ_are_named_by_their_variables() -> None:
    def body(mesh: Any) -> None:
        W1 = ag.Parameter(START + (mesh.axis("dp").rank == 2))
        with ag.Tape() as tape:
            loss = cc.all_reduce((rows(X) @ cc.cast(W1, "dp", to=R)).sum(), "dp", to=I)
        tape.backward(loss)

    text = refusal(body, cc.ReplicaMismatch)
    assert "rank 2: W1: f64[2,2] {dp: I} has digest" in text and "or Shard(d) for parts of one weight" in text


def test_a_permute_of_uneven_parts() -> None:
    ring = [(0, 1), (1, 2), (2, 0)]
    text = refusal(lambda mesh: cc.permute(ag.tensor(X[: mesh.axis("dp").rank + 1]), "dp", ring), cc.CollectiveMismatch)
    assert "  fix: permute(..., like=y), if the parts have different shapes: y has the shape that" in text

    def body(mesh: Any) -> Any:
        rank = mesh.axis("dp").rank
        return cc.permute(ag.tensor(X[: rank + 1]), "dp", ring, like=X[: (rank - 1) % 3 + 1]).numpy()

    numpy.testing.assert_allclose(run(body), X[:1])


def test_a_message_that_nobody_receives_in_a_ring() -> None:
    def body(mesh: Any, is_received: bool = False) -> None:
        rank = mesh.axis("dp").rank
        w = ag.Parameter(START, {"dp": V})
        with ag.Tape() as tape:
            cc.send(w * 2, "dp", (rank + 1) % 3)
            y = cc.recv("dp", (rank - 1) % 3)
            cc.send(y, "dp", (rank + 1) % 3)
            y = cc.recv("dp", (rank - 1) % 3) if is_received else y
            loss = cc.all_reduce((y * (rank + 1.0)).sum(), "dp", to=I)
        tape.backward(loss)
        return w.grad.numpy()

    text = refusal(body, cc.DeadlockError)
    assert "the cotangent of message 2 to rank 1" in text and "is this recv missing, or backward on its rank?" in text
    numpy.testing.assert_allclose(run(lambda mesh: body(mesh, True)), 2.0)  # that of rank 1 has gone to rank 0


# -- one rank ----------------------------------------------------------------------------------------------------------
PROGRAM = """
import autograd as ag, collectives as cc
def step(x, w):
    return x @ w
with cc.Mesh(dp=-1):
    x = cc.shard(ag.tensor([[1.0, 2.0]], {"dp": cc.R}), "dp")
    step(x, ag.Parameter([1.0, 2.0]))
"""


@pytest.mark.parametrize("is_full", [False, True])
def test_the_traceback_of_one_rank_leaves_out_the_frames_of_the_library(tmp_path: Any, is_full: bool) -> None:
    file = tmp_path / "one_rank.py"
    file.write_text(PROGRAM)
    environment = os.environ | ({"RINGTAPE_TRACEBACK": "full"} if is_full else {})
    done = subprocess.run([sys.executable, str(file)], env=environment, capture_output=True, text=True, check=False)
    frames = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert done.returncode == 1 and "axis 'dp': Invariant" in done.stderr
    assert sum("one_rank.py" in frame for frame in frames) == 2
    assert (len(frames) > 2) == is_full


# -- a cast outside of the function that is differentiated -------------------------------------------------------------
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_cast_made_outside_of_the_function_of_a_transform(ranks: int) -> None:
    serial = 2 * X.T @ (X @ START)
    gradients: dict[str, Callable[[Any, Any], Any]] = {
        "grad": lambda loss, w: ag.grad(loss)(w),
        "value_and_grad": lambda loss, w: ag.value_and_grad(loss)(w)[1],
        "hvp": lambda loss, w: ag.hvp(loss, (w,), (ag.constant(START),))[1],
        "check_grads": lambda loss, w: [ag.testing.check_grads(loss, w, order=1), ag.grad(loss)(w)][1],
    }
    for gradient in gradients.values():

        def outside(mesh: Any, gradient: Any = gradient) -> Any:
            w = ag.Parameter(START)
            wr = cc.cast(w, "dp", to=R)
            return gradient(lambda w: cc.all_reduce(((rows(X) @ wr) ** 2).sum(), "dp", to=I), w)

        def inside(mesh: Any, gradient: Any = gradient) -> Any:
            whole = lambda w: cc.all_reduce(((rows(X) @ cc.cast(w, "dp", to=R)) ** 2).sum(), "dp", to=I)
            return gradient(whole, ag.Parameter(START)).numpy()

        text = refusal(outside, ag.TapeError, ranks)
        assert text.startswith("wr: f64[2,2] {dp: R} was computed from a value that requires a gradient while no tape")
        assert "fix: compute it inside the function, from its argument" in text
        numpy.testing.assert_allclose(run(inside, ranks), serial)


# -- what is added inside of a sum, a slice that each rank cuts by its rank, and a call without counts -----------------
def test_a_value_added_to_the_addends_of_an_outer_sum() -> None:
    inner = lambda x: cc.all_reduce((x**2).sum(0) / 7 + 1e-5, "dp", to=I)
    for ranks in (1, 3):
        text = refusal(lambda mesh: inner(rows(X)), ranks=ranks)
        addend = "(x ** 2).sum(0) / 7"
        assert f"fix: all_reduce({addend}, 'dp', to=R)   (an all-reduce in both directions)\n" in text
        assert f"  or:  add y after the outer all_reduce, if {addend} is summed over the ranks later" in text
        found = run(lambda mesh: (cc.all_reduce((rows(X) ** 2).sum(0) / 7, "dp", to=I) + 1e-5).numpy(), ranks)
        numpy.testing.assert_allclose(found, (X**2).mean(0) + 1e-5)


@pytest.mark.parametrize("to", [I, R])
def test_a_slice_of_a_whole_by_the_rank(to: Any) -> None:
    whole = numpy.linspace(1.0, 2.0, 6)

    def gradient(use: Callable[[Any, int, int], Any]) -> Callable[[Any], Any]:
        def body(mesh: Any) -> Any:
            x, s = cc.shard(ag.tensor(numpy.arange(6.0), {"dp": R}), "dp"), ag.Parameter(whole)
            rank, k = int(mesh.axis("dp").rank), 6 // mesh.axis("dp").size
            with ag.Tape() as tape:
                loss = cc.all_reduce((x * use(s, rank, k)).sum(), "dp", to=I)
            tape.backward(loss)
            return s.grad.numpy()

        return body

    def sliced(s: Any, rank: int, k: int) -> Any:
        return (s if to is I else cc.cast(s, "dp", to=R))[rank * k : (rank + 1) * k]

    for ranks in (1, 3):
        text = refusal(gradient(sliced), ranks=ranks)
        assert "shard(s, 'dp', dim=0) in place of the slice of s   (this rank's part; an all-gather in back" in text
        found = run(gradient(lambda s, rank, k: cc.shard(s, "dp", dim=0)), ranks)
        numpy.testing.assert_allclose(found, numpy.arange(6.0))


@pytest.mark.parametrize("call", ["all_gather", "reduce_scatter"])
def test_a_call_of_a_group_without_counts(call: str) -> None:
    def body(mesh: Any, counts: Any = None) -> Any:
        group, x = mesh.axis("dp").group, numpy.arange(6.0)
        return getattr(group, call)(x, *([] if counts is None else [counts(x, group)]))

    for ranks in (1, 3):
        text = refusal(body, ag.ArgumentError, ranks)
        assert f"{call} on " in text and "needed: counts, the number of elements of each of the " in text
        fix = "[x.size] * group.size" if call == "all_gather" else "[x.size // group.size] * group.size"
        assert f"fix: {fix}, if all are equal" in text and "at test_offered_fixes.py" in text
        found = run(lambda mesh, fix=fix: body(mesh, lambda x, group: eval(fix, {"x": x, "group": group})), ranks)
        assert found.size == (6 * ranks if call == "all_gather" else 6 // ranks)
