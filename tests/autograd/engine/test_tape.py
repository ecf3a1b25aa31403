"""The tape: what it keeps, how it is replayed, where cotangents go, and what it refuses."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, ops, optim
from autograd.engine.distribution import ALONE, Alone
from autograd.engine.state import state
from collectives import I, P, R, Rooted, Shard, V


def parameter(*values: float) -> ag.Parameter:
    return ag.Parameter(numpy.array(values))


def grad_of(x: Any) -> Any:
    assert x.grad is not None
    return x.grad.local.tolist()


@pytest.fixture(autouse=True)
def nothing_is_left_recording() -> Iterator[None]:
    assert state.recording is None
    yield
    assert state.recording is None and state.distribution is ALONE and state.mesh is None


# -- one backward, and the next --------------------------------------------------------------------------------------


def test_backward_inside_and_outside_of_the_block() -> None:
    for inside in (True, False):
        w = parameter(1.0, 2.0)
        with ag.Tape() as tape:
            loss = (w * w).sum()
            if inside:
                tape.backward(loss)
        if not inside:
            tape.backward(loss)
        assert grad_of(w) == [2, 4]


def test_a_tensor_knows_its_tape() -> None:
    w = parameter(1.0, 2.0)
    with ag.Tape():
        loss = (w * w).sum()
    loss.backward()
    assert grad_of(w) == [2, 4]
    with ag.Tape():
        y = w * 3
    y.backward(numpy.array([1.0, 10.0]))
    assert grad_of(w) == [5, 34]


def test_second_backward_on_a_released_tape() -> None:
    w = parameter(1.0)
    with ag.Tape() as tape:
        loss = (w * w).sum()
    tape.backward(loss)
    with pytest.raises(ag.TapeError, match="second backward.*retain=True"):
        tape.backward(loss)
    with pytest.raises(ag.TapeError, match="second backward"):
        loss.backward()
    assert grad_of(w) == [2], "a refused backward changes nothing"


def test_retain_allows_another() -> None:
    w = parameter(3.0)
    with ag.Tape() as tape:
        loss = (w * w).sum()
    for n in (1, 2, 3):
        tape.backward(loss, retain=n < 3)
        assert grad_of(w) == [6 * n]
    with pytest.raises(ag.TapeError):
        tape.backward(loss)


def test_gradients_accumulate_until_zero_grad() -> None:
    w = parameter(1.0, 2.0)
    for n in (1, 2, 3):
        with ag.Tape() as tape:
            loss = (w * w).sum()
        tape.backward(loss)
        assert grad_of(w) == [2 * n, 4 * n]
    w.zero_grad()
    assert w.grad is None
    optimizer = optim.SGD([w], lr=0.0)
    with ag.Tape() as tape:
        loss = w.sum()
    tape.backward(loss)
    optimizer.zero_grad()
    assert w.grad is None


def test_two_outputs_with_cotangents() -> None:
    w = parameter(1.0, 2.0)
    with ag.Tape() as tape:
        y, z = w * w, w * 3
    tape.backward([y, z], [numpy.array([1.0, 0.0]), numpy.array([0.0, 1.0])])
    assert grad_of(w) == [2, 3]


def test_the_same_output_twice() -> None:
    w = parameter(1.0)
    with ag.Tape() as tape:
        y = w * 3
    tape.backward([y, y], [numpy.array([1.0]), numpy.array([10.0])])
    assert grad_of(w) == [33]


def test_a_number_as_cotangent() -> None:
    w = parameter(1.0, 2.0)
    with ag.Tape() as tape:
        y = w * 3
    tape.backward(y, 2.0)
    assert grad_of(w) == [6, 6]


def test_cotangents_are_left_alone() -> None:
    w = parameter(1.0, 2.0)
    ct = numpy.array([1.0, 2.0])
    with ag.Tape() as tape:
        y = w + 0.0
    tape.backward(y, ct)
    w.grad.array[:] = 7
    assert ct.tolist() == [1, 2]


def test_the_leaf_itself_as_output() -> None:
    w = parameter(1.0)
    with ag.Tape() as tape:
        loss = (w * 1.0).sum() + w.sum()
    tape.backward(loss)
    assert grad_of(w) == [2]


def test_an_unused_parameter_has_no_gradient() -> None:
    w, unused = parameter(1.0), parameter(5.0)
    with ag.Tape() as tape:
        unused * 2
        loss = (w * w).sum()
    tape.backward(loss)
    assert unused.grad is None


def test_a_diamond() -> None:
    w = parameter(2.0)
    with ag.Tape() as tape:
        a = w * w
        loss = (a * 3 + a * a + w).sum()
    tape.backward(loss)
    assert grad_of(w) == [3 * 4 + 2 * 4 * 4 + 1]


def test_a_branch_that_does_not_reach_the_loss() -> None:
    w = parameter(2.0)
    with ag.Tape() as tape:
        with numpy.errstate(over="ignore"):
            np.exp(w) * 1e300 * 1e300  # inf: its rules must not run
        loss = (w * w).sum()
    tape.backward(loss)
    assert grad_of(w) == [4]


# -- wanted ----------------------------------------------------------------------------------------------------------


def test_wanted_returns_and_leaves_grad_alone() -> None:
    w, other = parameter(1.0, 2.0), parameter(5.0)
    with ag.Tape() as tape:
        x = tape.watch(w)
        unused = tape.watch(other)
        y = x * x
        loss = y.sum()
    found = tape.backward(loss, wanted=[x, y, unused], retain=True)
    assert found[0].tolist() == [2, 4] and found[1].tolist() == [1, 1] and found[2] is None
    assert w.grad is None
    tape.backward(loss)
    assert grad_of(w) == [2, 4]


# -- tapes in tapes --------------------------------------------------------------------------------------------------


def test_an_inner_tape_is_an_interval() -> None:
    w = parameter(3.0)
    with ag.Tape() as outer:
        a = w * 2
        with ag.Tape() as inner:
            b = (a * a).sum()
        assert inner.recording is outer.recording
        inner.backward(b)
        assert w.grad is None, "the cotangent of a waits for the tape that owns a"
    outer.backward()
    assert grad_of(w) == [2 * 6 * 2]


def test_microbatches_leave_their_cotangents_with_the_owner() -> None:
    """A weight enters once; every microbatch's backward leaves its cotangent there; one backward carries them on."""
    w = parameter(2.0)
    entries = []
    data = [1.0, 10.0, 100.0]
    with ag.Tape() as outer:
        entered = w * 5  # stands for an entry whose adjoint is costly
        outer.mark(lambda sweep: entries.append("entry"))
        for x in data:
            with ag.Tape() as micro:
                loss = (entered * x).sum()
            micro.backward(loss)
            assert w.grad is None and entries == []
    outer.backward()
    assert grad_of(w) == [5 * sum(data)]
    assert entries == ["entry"]


def test_microbatches_run_forward_first_and_backward_later() -> None:
    w = parameter(2.0)
    with ag.Tape() as outer:
        entered = w * 5
        tapes = []
        for x in (1.0, 10.0, 100.0):
            with ag.Tape() as micro:
                tapes.append((micro, (entered * entered * x).sum()))
        for micro, loss in tapes:  # in any order
            micro.backward(loss)
    outer.backward()
    assert grad_of(w) == [2 * 10 * 111 * 5]


def test_microbatches_on_tapes_of_their_own() -> None:
    """Not nested: each tape imports the value, and its sweep leaves the cotangent with the value's owner."""
    w = parameter(2.0)
    outer = ag.Tape()
    with outer:
        entered = w * 5
    for x in (1.0, 10.0):
        with ag.Tape() as micro:
            loss = (entered * x).sum()
        micro.backward(loss)
        assert w.grad is None
    assert outer.take(entered).tolist() == [11]
    assert outer.take(entered) is None, "taken is gone"
    outer.backward([entered], [numpy.array([11.0])])
    assert grad_of(w) == [55]


def test_pending_cotangents_join_the_outer_sweeps_own() -> None:
    w = parameter(2.0)
    with ag.Tape() as outer:
        a = w * 3
        with ag.Tape() as inner:
            b = (a * 7).sum()
        inner.backward(b)
        c = (a * 100).sum()
    outer.backward(c)
    assert grad_of(w) == [3 * 107]


def test_take_from_an_interval() -> None:
    w = parameter(2.0)
    with ag.Tape() as outer:
        a = w * 3
        with ag.Tape() as inner:
            b = (a * 7).sum()
        inner.backward(b)
        assert outer.take(a).tolist() == [7]
        assert outer.take(b) is None
    outer.backward()
    assert w.grad is None


def test_a_leaf_first_used_by_an_inner_tape() -> None:
    w = parameter(2.0)
    with ag.Tape() as outer:
        with ag.Tape() as inner:
            b = (w * w).sum()
        inner.backward(b)
        assert grad_of(w) == [4]
        with ag.Tape() as second:
            c = (w * w).sum()
        second.backward(c)
    outer.backward()
    assert grad_of(w) == [8]


def test_a_tape_of_a_released_value() -> None:
    w = parameter(2.0)
    with ag.Tape() as first:
        a = w * 3
        loss = a.sum()
    first.backward(loss)
    with ag.Tape():
        with pytest.raises(ag.TapeError, match="released.*stop_gradient"):
            a * 2
        assert (ops.stop_gradient(a) * 2).numpy().tolist() == [12]


def test_a_tape_is_entered_once() -> None:
    tape = ag.Tape()
    with tape:
        pass
    with pytest.raises(ag.TapeError, match="entered before"):
        tape.__enter__()


def test_an_exception_inside_the_block_ends_the_recording() -> None:
    w = parameter(1.0)
    with pytest.raises(ZeroDivisionError):
        with ag.Tape():
            w * 2
            raise ZeroDivisionError
    assert state.recording is None
    assert (w * 2).tape is None


# -- marks, effects, pokes, events -----------------------------------------------------------------------------------


def test_a_mark_is_called_when_everything_later_is_done() -> None:
    w = parameter(1.0)
    seen: list[Any] = []
    with ag.Tape() as tape:
        tape.mark(lambda sweep: seen.append("first"))
        a = np.exp(w)
        tape.mark(lambda sweep: seen.append("second"))
        b = np.tanh(a).sum()
        tape.mark(lambda sweep: seen.append("third"))
    with ag.events.listening(lambda phase, direction, name: seen.append(name) if phase == "end" else None):
        tape.backward(b)
    order = [s for s in seen if s in ("first", "second", "third", "exp", "tanh")]
    assert order == ["third", "tanh", "second", "exp", "first"]


def test_marks_and_effects_are_reached_without_a_cotangent() -> None:
    seen: list[str] = []
    w = parameter(1.0)
    with ag.Tape() as tape:
        loss = (w * 2).sum()
        tape.mark(lambda sweep: seen.append("mark"))
        tape.effect(lambda: seen.append("do"), lambda: seen.append("undo"))
    tape.backward(loss)
    assert seen == ["do", "undo", "mark"]


def test_effects_are_undone_in_reverse() -> None:
    held = {"a"}
    w = parameter(1.0)
    with ag.Tape() as tape:
        x = w * 2
        tape.effect(lambda: held.discard("a"), lambda: held.add("a"))
        tape.effect(lambda: held.add("b"), lambda: held.discard("b"))
        loss = x.sum()
    assert held == {"b"}
    tape.backward(loss)
    assert held == {"a"}


def test_marks_and_effects_need_an_open_tape() -> None:
    tape = ag.Tape()
    for call in (lambda: tape.mark(print), lambda: tape.effect(print, print)):
        with pytest.raises(ag.TapeError, match="not recording"):
            call()
    with tape:
        pass
    with pytest.raises(ag.TapeError, match="not recording"):
        tape.mark(print)


def test_progress_is_made_after_each_node_while_something_is_in_flight() -> None:
    started, calls = [1], list[int]()

    class Pending(Alone):
        in_flight = [], started

        def progress(self) -> None:
            calls.append(1)

    w = parameter(1.0)
    with ag.Tape() as tape:
        loss = np.tanh(np.exp(w)).sum()
    state.distribution = Pending()
    try:
        tape.backward(loss, retain=True)
        assert len(calls) == 4  # sum, tanh, exp, leaf
        started.clear()
        tape.backward(loss)
    finally:
        state.distribution = ALONE
    assert len(calls) == 4


def test_events_of_both_directions() -> None:
    seen: list[tuple[str, str, str]] = []
    w = parameter(1.0)
    with ag.events.listening(lambda *event: seen.append(event)):
        with ag.Tape() as tape:
            loss = np.exp(w).sum()
        tape.backward(loss)
    assert seen == [
        ("begin", "forward", "exp"), ("end", "forward", "exp"), ("begin", "forward", "sum"), ("end", "forward", "sum"),
        ("begin", "backward", "sum"), ("end", "backward", "sum"), ("begin", "backward", "exp"),
        ("end", "backward", "exp"), ("begin", "backward", "leaf"), ("end", "backward", "leaf"),
    ]  # fmt: skip
    seen.clear()
    np.exp(w)
    assert seen == [], "a listener stops with its block"


# -- the objective ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [I, P, Rooted(0)])
def test_an_objective_that_is_one_number(label: Any) -> None:
    with cc.Mesh(dp=1):
        x = ag.tensor(numpy.array([1.0, 2.0]), {"dp": label}, requires_grad=True)
        with ag.Tape() as tape:
            loss = (x * 3.0).sum()
        tape.backward(loss)
        assert grad_of(x) == [3, 3]
        assert x.grad.layout is x.layout.dual


@pytest.mark.parametrize("label, words", [
    (R, ["Replicated", "count once per rank", "cast(loss, 'dp', to=I)"]),
    (V, ["Varying", "all_reduce(loss, 'dp', to=I)", "broadcast(loss, 'dp', 0, to=I)"]),
])  # fmt: skip
def test_an_objective_that_is_not_one_number(label: Any, words: list[str]) -> None:
    with cc.Mesh(dp=1):
        x = ag.tensor(numpy.array([1.0, 2.0]), {"dp": label}, requires_grad=True)
        with ag.Tape() as tape:
            loss = (x * 3.0).sum()
        for attempt in (lambda: tape.backward(loss), loss.backward):
            with pytest.raises(ag.LayoutError) as error:
                attempt()
            text = str(error.value)
            for word in [*words, "axis 'dp'", "fix: ", "test_tape.py:", "Invariant, Partial or Rooted"]:
                assert word in text
        assert x.grad is None
        with pytest.raises(ag.LayoutError):
            ag.grad(lambda z: (z * 3.0).sum())(x)


def test_the_objectives_fixes_work() -> None:
    with cc.Mesh(dp=1):
        for label, fix in ((R, lambda y: cc.cast(y, "dp", to=I)), (V, lambda y: cc.all_reduce(y, "dp", to=I)),
                           (V, lambda y: cc.mean(y, "dp", to=I))):  # fmt: skip
            x = ag.tensor(numpy.array([1.0, 2.0]), {"dp": label}, requires_grad=True)
            with ag.Tape() as tape:
                loss = fix((x * 3.0).sum())
            tape.backward(loss)
            assert grad_of(x) == [3, 3]


def test_a_cotangent_must_have_the_dual_layout() -> None:
    with cc.Mesh(dp=1):
        x = ag.tensor(numpy.ones(2), {"dp": I}, requires_grad=True)
        with ag.Tape() as tape:
            y = x * 3.0
        with pytest.raises(ag.LayoutError) as error:
            tape.backward(y, numpy.ones(2))
        for word in ("axis 'dp'", "cotangent is Varying", "must be Invariant", "fix: ag.tensor(cotangent"):
            assert word in str(error.value)
        with pytest.raises(ag.LayoutError, match="Replicated"):
            tape.backward(y, ag.tensor(numpy.ones(2), {"dp": R}))
        tape.backward(y, ag.tensor(numpy.ones(2), {"dp": I}))
        assert grad_of(x) == [3, 3]


# -- transforms ------------------------------------------------------------------------------------------------------


def test_perturbations_are_not_confused() -> None:
    """Siskind and Pearlmutter 2005: d/dx [x * d/dy (x + y)] at 1 is 1, not 2."""
    assert ag.grad(lambda x: x * ag.grad(lambda y: x + y)(1.0))(1.0) == 1
    assert ag.jvp(lambda x: x * ag.jvp(lambda y: x + y, (1.0,), (1.0,))[1], (1.0,), (1.0,))[1] == 1
    assert ag.grad(lambda x: x * ag.jvp(lambda y: x + y, (1.0,), (1.0,))[1])(1.0) == 1
    assert ag.jvp(lambda x: x * ag.grad(lambda y: x + y)(1.0), (1.0,), (1.0,))[1] == 1
    assert ag.grad(lambda x: x * ag.grad(lambda y: x * y)(2.0))(3.0) == 6
    assert ag.grad(lambda x: x * ag.grad(lambda y: y * y)(x))(3.0) == 12
    assert ag.jvp(lambda x: x * ag.jvp(lambda y: y * x, (x,), (x,))[1], (3.0,), (1.0,))[1] == 27


def test_gradient_of_a_closure() -> None:
    w = parameter(2.0)

    def f(x: Any) -> Any:
        return (x * w * w).sum()

    with ag.Tape() as tape:
        g = ag.grad(f)(ag.tensor([3.0]))
        loss = (g * g).sum()  # w ** 4
    assert g.numpy().tolist() == [4]
    tape.backward(loss)
    assert grad_of(w) == [4 * 8]


def test_a_transform_does_not_touch_the_closures_gradient() -> None:
    w = parameter(2.0)
    assert ag.grad(lambda x: (x * w).sum())(numpy.array([3.0])).tolist() == [2]
    assert w.grad is None


@pytest.mark.parametrize("f, derivatives", [
    (np.sin, [numpy.cos, lambda x: -numpy.sin(x), lambda x: -numpy.cos(x), numpy.sin]),
    (lambda x: x**4, [lambda x: 4 * x**3, lambda x: 12 * x**2, lambda x: 24 * x, lambda x: 24.0]),
    (lambda x: np.exp(2 * x), [lambda x, n=n: 2.0**n * numpy.exp(2 * x) for n in (1, 2, 3, 4)]),
])  # fmt: skip
def test_higher_order(f: Any, derivatives: list[Callable[[float], float]]) -> None:
    reverse, forward = f, f
    for order, expected in enumerate(derivatives, 1):
        reverse = ag.grad(reverse)
        forward = (lambda g: lambda x: ag.jvp(g, (x,), (1.0,))[1])(forward)
        numpy.testing.assert_allclose(float(reverse(0.7)), expected(0.7), rtol=1e-12, err_msg=f"reverse {order}")
        numpy.testing.assert_allclose(float(forward(0.7)), expected(0.7), rtol=1e-12, err_msg=f"forward {order}")


def test_value_and_grad_of_several_arguments() -> None:
    value, (a, b) = ag.value_and_grad(lambda x, y, scale=1.0: (x * y).sum() * scale, (0, 1))(
        numpy.array([1.0, 2.0]), numpy.array([3.0, 4.0]), scale=10.0
    )
    assert value == 110 and a.tolist() == [30, 40] and b.tolist() == [10, 20]
    assert not isinstance(value, ag.Tensor) and not isinstance(a, ag.Tensor)


def test_a_pullback_may_be_called_again() -> None:
    y, pullback = ag.vjp(np.exp, numpy.zeros(2))
    assert pullback(numpy.array([1.0, 0.0])).tolist() == [1, 0]
    assert pullback(numpy.array([0.0, 3.0])).tolist() == [0, 3]
    assert not isinstance(y, ag.Tensor)


def test_vjp_and_jvp_of_several_outputs() -> None:
    (y, z), pullback = ag.vjp(lambda a, b: (a * b, a + b), numpy.array([2.0]), numpy.array([3.0]))
    assert y == 6 and z == 5
    a, b = pullback((numpy.array([1.0]), numpy.array([10.0])))
    assert a.tolist() == [13] and b.tolist() == [12]
    (y, z), (dy, dz) = ag.jvp(lambda a, b: (a * b, a + b), (numpy.array([2.0]), numpy.array([3.0])),
                              (numpy.array([1.0]), numpy.array([0.0])))  # fmt: skip
    assert dy.tolist() == [3] and dz.tolist() == [1]


def test_a_function_that_does_not_depend_on_its_argument() -> None:
    assert ag.grad(lambda x: 3.0)(numpy.ones(2)).tolist() == [0, 0]
    assert ag.grad(lambda x: np.sum(numpy.ones(2)))(numpy.ones(2)).tolist() == [0, 0]
    assert ag.jvp(lambda x: np.ones(2), (1.0,), (1.0,))[1].tolist() == [0, 0]
    assert ag.grad(lambda x: ag.grad(lambda y: y * 2.0)(x) * 3.0)(1.0) == 0


def test_transforms_inside_a_tape_are_recorded() -> None:
    w = parameter(2.0)
    with ag.Tape() as tape:
        g = ag.grad(lambda x: (x**3).sum())(w)
        loss = g.sum()
    tape.backward(loss)
    assert grad_of(w) == [12]


def test_a_recorded_sweep_can_be_differentiated() -> None:
    w = parameter(2.0)
    with ag.Tape() as outer:
        with ag.Tape() as inner:
            x = inner.watch(w)
            y = (x**3).sum()
        (g,) = inner.backward(y, wanted=[x], retain=True, record=True)
        penalty = (g * g).sum()
    outer.backward(penalty)
    assert grad_of(w) == [2 * 12 * 12]


# -- no_grad and stop_gradient ---------------------------------------------------------------------------------------


def test_no_grad_records_nothing() -> None:
    w = parameter(2.0)
    with ag.Tape() as tape:
        with ag.no_grad():
            a = w * 3
        loss = (w * a).sum()
    assert a.tape is None
    tape.backward(loss)
    assert grad_of(w) == [6]


def test_no_grad_ends_with_an_exception_too() -> None:
    with ag.Tape() as tape:
        with pytest.raises(ValueError), ag.no_grad():
            raise ValueError
        assert state.recording is tape.recording


def test_stop_gradient_cuts() -> None:
    assert ag.grad(lambda x: (ops.stop_gradient(x) * x).sum())(numpy.array([3.0])).tolist() == [3]
    assert ag.grad(ag.grad(lambda y: ops.stop_gradient(y) * y))(3.0) == 0


def test_without_a_tape_nothing_is_recorded() -> None:
    w = parameter(2.0)
    y = (w * w).sum()
    assert y.tape is None and not y.requires_grad
    with pytest.raises(ag.TapeError, match="a value that no tape recorded\n  fix: with ag.Tape") as caught:
        y.backward()
    assert "record=True" not in str(caught.value)  # it was computed from a Parameter, not from a gradient


# -- ownership -------------------------------------------------------------------------------------------------------


def shared(*arrays: Any) -> bool:
    return any(numpy.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[i + 1 :])


@pytest.mark.parametrize("f", [
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: (a + b) + (b + a), lambda a, b: np.concatenate([a, b]),
    lambda a, b: (a + 0.0) + b, lambda a, b: a.reshape(4) + b.reshape(4), lambda a, b: a.T + b.T,
    lambda a, b: np.where(True, a, b) + b + a, lambda a, b: np.broadcast_to(a, (3, 2, 2)) + b, lambda a, b: a @ b,
    lambda a, b: np.stack([a, b, a]), lambda a, b: a[0] + b[0],
])  # fmt: skip
def test_gradients_are_owned_and_not_shared(f: Any) -> None:
    a, b = (ag.Parameter(numpy.arange(4.0).reshape(2, 2) + n) for n in (1, 2))
    with ag.Tape() as tape:
        y = f(a, b)
    ct = numpy.random.default_rng(0).standard_normal(y.shape)
    tape.backward(y, ct)
    ga, gb = a.grad.array, b.grad.array
    assert not shared(ga, gb, ct, a.array, b.array, y.array)
    for g in (ga, gb):
        assert g.flags.writeable and g.base is None
    before = gb.copy()
    ga += 100.0
    assert numpy.array_equal(gb, before)


def test_an_operand_used_twice_has_one_gradient_of_its_own() -> None:
    x, w = parameter(1.0, 2.0), parameter(3.0, 4.0)
    with ag.Tape() as tape:
        y = x + x
        z = (y + w) + y
    ct = numpy.ones(2)
    tape.backward(z, ct)
    assert grad_of(x) == [4, 4] and grad_of(w) == [1, 1] and ct.tolist() == [1, 1]
    assert not shared(x.grad.array, w.grad.array, ct)


def test_a_gradient_kept_by_the_user_does_not_change_with_the_next_backward() -> None:
    w = parameter(1.0, 2.0)
    with ag.Tape() as tape:
        loss = (w * w).sum()
    tape.backward(loss, retain=True)
    held = w.grad
    before = held.numpy().copy()
    w.zero_grad()
    tape.backward(loss)
    assert numpy.array_equal(held.numpy(), before)
    assert not shared(held.array, w.grad.array)


def test_retained_backwards_through_a_broadcast_are_owned() -> None:
    """The cotangent of a sum is a broadcast view without memory of its own: it must not become a gradient."""
    w = ag.Parameter(numpy.ones((3, 2)))
    with ag.Tape() as tape:
        loss = w.sum()
    tape.backward(loss)
    assert w.grad.array.flags.writeable and w.grad.array.strides == (16, 8)
    w.grad.array[0, 0] = 5
    assert w.grad.array.sum() == 10


def test_inputs_of_a_sum_do_not_alias_across_leaves() -> None:
    leaves = [ag.Parameter(numpy.ones(3)) for _ in range(4)]
    with ag.Tape() as tape:
        total = sum(leaves)
    tape.backward(total, numpy.ones(3))
    assert not shared(*(x.grad.array for x in leaves))


# -- saved arrays ----------------------------------------------------------------------------------------------------


def test_saved_arrays_are_read_only_until_released() -> None:
    a = numpy.array([1.0, 2.0])
    x, w = ag.tensor(a), parameter(3.0, 4.0)
    with ag.Tape() as tape:
        loss = (x * w).sum()
        assert not a.flags.writeable and not w.array.flags.writeable
    tape.backward(loss)
    assert a.flags.writeable and w.array.flags.writeable
    a[0] = 7
    w.data[0] = 7
    assert w.numpy().tolist() == [7, 4]


def test_retained_means_still_saved() -> None:
    w = parameter(1.0)
    with ag.Tape() as tape:
        loss = (w * w).sum()
    tape.backward(loss, retain=True)
    with pytest.raises(ag.SavedArrayError):
        w.data[0] = 2
    tape.backward(loss)
    w.data[0] = 2


def test_an_array_saved_by_two_tapes_is_free_after_both() -> None:
    w = parameter(1.0)
    with ag.Tape() as first:
        a = (w * w).sum()
    with ag.Tape() as second:
        b = (w * w).sum()
    first.backward(a)
    assert not w.array.flags.writeable
    second.backward(b)
    assert w.array.flags.writeable


def test_an_array_that_was_read_only_before_stays_so() -> None:
    a = numpy.ones(2)
    a.flags.writeable = False
    w = parameter(1.0, 1.0)
    with ag.Tape() as tape:
        loss = (ag.tensor(a) * w).sum()
    tape.backward(loss)
    assert not a.flags.writeable


WRITES: dict[str, Callable[[Any], Any]] = {
    "data[0] = 1": lambda x: x.data.__setitem__(0, 1),
    "data += 1": lambda x: x.data.__iadd__(1),
    "numpy() *= 2": lambda x: x.numpy().__imul__(2),
    "ufunc with out": lambda x: numpy.add(x.data, 1, out=x.data),
    "ufunc.at": lambda x: numpy.add.at(x.data, [0], 1),
    "fill": lambda x: x.data.fill(0),
    "sort": lambda x: x.data.sort(),
    "a view of data": lambda x: x.data[:1].__setitem__(0, 1),
}
NUMPYS_OWN: dict[str, Callable[[Any], Any]] = {
    "numpy.copyto": lambda x: numpy.copyto(x.data, 0),
    "numpy.put": lambda x: numpy.put(x.data, [0], 1),
    "put": lambda x: x.data.put([0], 1),
    "partition": lambda x: x.data.partition(0),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("which", ["leaf", "result"])
def test_writing_to_a_saved_array(write: str, which: str) -> None:
    w = parameter(1.0, 2.0)
    with ag.Tape() as tape:
        y = np.exp(w)
        loss = (y * y).sum()
    x = w if which == "leaf" else y
    with pytest.raises(ag.SavedArrayError) as error:
        WRITES[write](x)
    assert "backward" in str(error.value) and "Fix: " in str(error.value)
    tape.backward(loss)
    numpy.testing.assert_allclose(grad_of(w), 2 * numpy.exp([2.0, 4.0]), rtol=1e-14)


@pytest.mark.parametrize("write", NUMPYS_OWN)
def test_what_numpy_refuses_itself(write: str) -> None:
    """Read-only is read-only; inside the tape's block NumPy's words become ours."""
    w = parameter(1.0, 2.0)
    with pytest.raises(ag.SavedArrayError, match="needs for its backward"):
        with ag.Tape():
            y = w * w
            with ag.no_grad():  # `data` of a value that the tape follows is refused otherwise
                with pytest.raises(ValueError):
                    NUMPYS_OWN[write](w)
                NUMPYS_OWN[write](w)
    assert w.array.tolist() == [1, 2] and y.array.tolist() == [1, 4]


def test_writing_to_the_users_own_array_inside_the_block() -> None:
    """The array that a tensor adopted is NumPy's own; its refusal becomes ours at the end of the block."""
    a = numpy.ones(2)
    w = parameter(1.0, 1.0)
    with pytest.raises(ag.SavedArrayError, match="inside the tape's block"):
        with ag.Tape():
            ag.tensor(a) * w
            a += 1
    assert a.tolist() == [1, 1]


def test_assignment_to_a_tensor() -> None:
    with pytest.raises(ag.SavedArrayError, match="functional form.*where"):
        ag.tensor([1.0, 2.0])[0] = 1
    w = parameter(1.0)
    with ag.Tape():
        y = w * 2
        with pytest.raises(ag.SavedArrayError):
            y[0] = 1
        with pytest.raises(ag.SavedArrayError, match="leaf"):
            y.data = numpy.ones(1)


def test_an_optimizer_step_with_a_retained_tape() -> None:
    w = ag.Parameter(numpy.array([1.0, 2.0]), name="w")
    for optimizer in (optim.SGD([w], lr=0.1), optim.Adam([w], lr=0.1)):
        with ag.Tape() as tape:
            loss = (w * w).sum()
        tape.backward(loss, retain=True)
        before = w.numpy().copy()
        with pytest.raises(ag.SavedArrayError, match=r"optimizer was to update w of shape \(2,\).*retain"):
            optimizer.step()
        assert numpy.array_equal(w.numpy(), before)
        tape.backward(loss)
        optimizer.step()
        assert not numpy.array_equal(w.numpy(), before)
        w.zero_grad()


def test_an_optimizer_step_before_backward() -> None:
    w = parameter(1.0)
    w.grad = ag.tensor([1.0])
    with ag.Tape() as tape:
        loss = (w * w).sum()
    with pytest.raises(ag.SavedArrayError):
        optim.SGD([w], lr=0.1).step()
    tape.backward(loss)


# -- memory ----------------------------------------------------------------------------------------------------------


@contextmanager
def without_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_tape_that_is_dropped_frees_its_arrays_at_once() -> None:
    with without_gc():
        w = ag.Parameter(numpy.ones(1000))
        with ag.Tape() as tape:
            a = np.exp(w)
            b = np.tanh(a)
            loss = (b * a).sum()
        watched = [weakref.ref(x.array) for x in (a, b)] + [weakref.ref(tape.recording)]
        assert all(ref() is not None for ref in watched)
        del tape, a, b, loss
        assert all(ref() is None for ref in watched)
        assert w.array.flags.writeable, "a dropped tape gives its arrays back"


def test_backward_frees_as_it_goes() -> None:
    with without_gc():
        w = ag.Parameter(numpy.ones(10))
        alive: list[int] = []
        refs: list[Any] = []
        with ag.Tape() as tape:
            x = w
            for _ in range(5):
                x = np.exp(x * 0.1)
                refs.append(weakref.ref(x.array))
                tape.mark(lambda sweep: alive.append(sum(r() is not None for r in refs)))
            loss = x.sum()
        del x
        tape.backward(loss)
        assert alive == sorted(alive, reverse=True) and alive[-1] < alive[0]
        del loss
        assert all(r() is None for r in refs)


def test_an_interior_result_does_not_keep_the_tape_after_backward() -> None:
    with without_gc():
        w = ag.Parameter(numpy.ones(10))
        with ag.Tape() as tape:
            a = np.exp(w)
            loss = (a * a).sum()
        ref = weakref.ref(a.array)
        del a
        tape.backward(loss)
        assert ref() is None, "the tape is still here, its arrays are not"


def test_two_hundred_steps_do_not_grow_memory() -> None:
    ag.random.seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = optim.Adam(model.parameters())
    rng = numpy.random.default_rng(0)
    x, y = rng.standard_normal((8, 16)).astype("float32"), rng.integers(0, 4, 8)

    def step() -> None:
        with ag.Tape() as tape:
            loss = nn.cross_entropy(model(x), y, reduction="sum") / 8.0
        tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    with without_gc():
        for _ in range(2500):  # until Python's own free lists of tuples are full
            step()
        tracemalloc.start()
        step()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(200):
            step()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    assert after - before < 8192, f"{after - before} bytes more after 200 steps"


def test_many_microbatches_do_not_keep_their_intermediates() -> None:
    """Inner tapes release their interval though the outer tape lives on."""
    with without_gc():
        w = ag.Parameter(numpy.ones(100))
        refs = []
        with ag.Tape() as outer:
            entered = w * 1.0
            for _ in range(3):
                with ag.Tape() as micro:
                    a = np.exp(entered)
                    loss = (a * a).sum()
                refs.append(weakref.ref(a.array))
                micro.backward(loss)
                del a, loss
            assert all(r() is None for r in refs)
        outer.backward()


# -- threads ---------------------------------------------------------------------------------------------------------


def in_thread(f: Callable[[], Any]) -> Any:
    result: list[Any] = []

    def main() -> None:
        try:
            result.append(f())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    return result[0]


def test_threads_record_independently() -> None:
    def work(n: int) -> Any:
        w = parameter(float(n))
        for _ in range(50):
            w.zero_grad()
            with ag.Tape() as tape:
                loss = (w * w).sum()
            tape.backward(loss)
        return grad_of(w)

    results: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda n=n: results.update({n: work(n)})) for n in range(8)]
    with ag.Tape() as tape:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert results == {n: [2.0 * n] for n in range(8)}
    assert tape.recording.nodes == []


def test_another_threads_state_is_its_own() -> None:
    with ag.Tape(), cc.Mesh(dp=1):
        assert in_thread(lambda: (state.recording, state.grid, state.mesh)) == (None, None, None)


def test_an_operand_of_another_thread_is_refused() -> None:
    w = parameter(2.0)
    with ag.Tape() as tape:
        a = w * 3

        def other() -> Any:
            with ag.Tape():
                return a * 2

        error = in_thread(other)
    assert isinstance(error, ag.TapeError) and "another thread" in str(error) and "collective" in str(error)
    tape.backward(a, numpy.ones(1))
    assert grad_of(w) == [3]


def test_ranks_that_save_one_array_at_once() -> None:
    """Ranks as threads may share data: the count of who needs it must not lose an increment."""
    from autograd.engine import locks as module
    from autograd.engine.recording import Recording

    def work() -> None:
        for _ in range(300):
            recordings = [Recording() for _ in range(4)]
            for recording in recordings:
                recording.lock(data)
            for recording in recordings:
                recording.release()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(3):
            data = numpy.ones(4)
            threads = [threading.Thread(target=work) for _ in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert data.flags.writeable
            assert id(data) not in module._locked
    finally:
        sys.setswitchinterval(interval)


_ROOT = Path(__file__).resolve().parents[3]
_COLLECTED = """
import gc
import numpy as np
import autograd as ag
from autograd.engine import locks

class Collecting(np.ndarray):
    def setflags(self, *args):
        gc.collect()
        super().setflags(*args)

class Holder:
    pass

gc.disable()
data, shared = np.ones(3), np.ones(3)
holder = Holder()
holder.itself = holder
x = ag.tensor(np.ones(3), requires_grad=True)
with ag.Tape() as holder.tape:
    holder.y = x * data * shared
del holder
assert not data.flags.writeable
with ag.Tape() as tape:
    y = x * np.ones(3).view(Collecting) * shared  # the tape in the cycle is found while an array is being locked
assert data.flags.writeable and not shared.flags.writeable
assert locks._locked[id(shared)] == 1
del tape, y
x.tape = None
assert shared.flags.writeable and not locks._locked
print("DONE")
"""


def test_the_collector_drops_a_tape_while_an_array_is_locked() -> None:
    """Its finalizer does not wait for the lock that its own thread holds: from Python 3.12 on, that happens at random.

    In a process of its own, because a failure is a deadlock.
    """
    done = subprocess.run(
        [sys.executable, "-c", _COLLECTED], capture_output=True, text=True, timeout=60, check=False, cwd=_ROOT
    )
    assert (done.stdout, done.stderr) == ("DONE\n", "")


def test_listeners_hear_their_own_thread() -> None:
    seen: list[str] = []
    with ag.events.listening(lambda *event: seen.append(event[2])):
        in_thread(lambda: np.exp(ag.tensor([1.0])))
    assert seen == []


# -- communications on the tape --------------------------------------------------------------------------------------


def test_communications_run_without_a_cotangent() -> None:
    """A rank whose part does not reach the loss still takes part in backward: zeros, not silence."""

    def program() -> Any:
        with cc.Mesh(dp=3) as mesh:
            w = parameter(2.0)
            with ag.Tape() as tape:
                x = cc.cast(w, "dp", to=R)
                mine = x.sum() if mesh.axis("dp").rank == 1 else ag.tensor(0.0, {"dp": V})
                loss = cc.all_reduce(cc.cast(mine, "dp", to=V), "dp", to=I)
            tape.backward(loss)
            return grad_of(w)

    assert cc.run(program, 3) == [[1], [1], [1]]


def test_communications_are_recorded_whatever_their_operand_requires() -> None:
    with cc.Mesh(dp=1), ag.Tape() as tape:
        y = cc.all_reduce(ag.tensor([1.0]), "dp", to=I)
    assert y.tape is tape.recording and len(tape.recording.nodes) == 1
    with cc.Mesh(dp=1), ag.Tape() as tape:
        with ag.no_grad():
            assert cc.all_reduce(ag.tensor([1.0]), "dp", to=I).tape is None
        assert cc.all_reduce(ag.tensor([1]), "dp", to=I).tape is None
    assert tape.recording.nodes == []


def test_a_sharded_parameter_accumulates_in_its_own_layout() -> None:
    with cc.Mesh(tp=1):
        w = ag.Parameter(numpy.ones((2, 2)), {"tp": Shard(0)})
        for n in (1.0, 2.0):
            with ag.Tape() as tape:
                loss = cc.all_reduce(w.sum(), "tp", to=I)
            tape.backward(loss)
            assert w.grad.layout == {"tp": Shard(0)} and w.grad.numpy().tolist() == [[n, n], [n, n]]


# -- the optimizer's short path ----------------------------------------------------------------------------------------


def test_sgd_takes_small_parameters_together_as_it_takes_them_one_by_one() -> None:
    """Steps in which some parameter has no gradient, in every order, against the formula."""
    rng = numpy.random.default_rng(3)
    shapes = [(3, 2), (2,), (200, 100), ()]
    for missing in ([], [0], [1, 3]):
        parameters = [ag.Parameter(rng.standard_normal(s)) for s in shapes]
        values, velocity = [p.numpy().copy() for p in parameters], [0.0] * len(shapes)
        optimizer = optim.SGD(parameters, lr=0.1, momentum=0.9)
        for step in range(4):
            for i, p in enumerate(parameters):
                g = rng.standard_normal(shapes[i])
                absent = step in (0, 2) and i in missing
                p.grad = None if absent else ag.Tensor(numpy.asarray(g))
                if not absent:
                    velocity[i] = 0.9 * velocity[i] + g
                    values[i] = values[i] - 0.1 * velocity[i]
            optimizer.step()
        for p, value in zip(parameters, values, strict=True):
            numpy.testing.assert_allclose(p.numpy(), value, rtol=1e-13, atol=1e-15)


def test_a_value_made_after_the_block_is_no_silent_zero() -> None:
    """On a tape that communicates a rank's loss may depend on no leaf, but not because it was made too late."""
    def program() -> None:
        with cc.Mesh(a=2):
            w = ag.Parameter(numpy.ones(3))
            x = ag.tensor(numpy.arange(3.0) + cc.world().rank)
            with ag.Tape() as tape:
                loss = cc.all_reduce((cc.cast(w, "a", to=R) * x).sum(), "a", to=I)
            with ag.no_grad():
                late = loss * 2.0
            tape.backward(late)

    with pytest.raises(ag.TapeError, match="outside the tape's block"):
        cc.run(program, 2)


def test_a_second_backward_of_an_inner_tape_is_refused() -> None:
    """Its nodes are gone from the outer tape's list, which goes on."""
    w = ag.Parameter([1.0, 2.0])
    with ag.Tape():
        with ag.Tape() as inner:
            y = (w * w).sum()
        inner.backward(y)
        with pytest.raises(ag.TapeError, match="second backward on a tape that the first one released"):
            inner.backward(y)
    assert w.grad.numpy().tolist() == [2.0, 4.0]
