"""What `.grad` accepts, what starts a sweep, and what a sweep leaves behind: on one rank, with and without a mesh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import optim
from autograd.extend import defvjp, primitive
from collectives import I, P, R, Shard, V


@pytest.fixture
def mesh() -> Iterator[Any]:
    with cc.Mesh(dp=1) as mesh:
        yield mesh


# -- recorded sweeps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("into_grad", [False, True])
def test_a_recorded_sweep_keeps_the_tape_that_it_reads(retain: bool, into_grad: bool) -> None:
    """d/dw of (d/dw w^4)^2 / 2 at 3 is 108 * 108, and of d/dw w^4 it is 108."""
    w = ag.Parameter([3.0])
    with ag.Tape() as outer:
        with ag.Tape() as inner:
            y = (w * w * w * w).sum()
        if into_grad:
            inner.backward(y, record=True, retain=retain)
            first = w.grad
        else:
            (first,) = inner.backward(y, wanted=[w], record=True, retain=retain) or ()
        z = (first * first * 0.5).sum()
    w.zero_grad()
    outer.backward(z)
    assert w.grad is not None and w.grad.numpy() == [108.0 * 108.0]


# -- what .grad accepts ------------------------------------------------------------------------------------------------


def test_grad_accepts_only_the_dual_layout(mesh: Any) -> None:
    for label, dual in ((R, P), (P, R), (I, I), (V, V), (Shard(0), Shard(0))):
        w = ag.tensor([1.0, 2.0], {"dp": label}, requires_grad=True, global_shape=(2,) if label == Shard(0) else None)
        for given in (R, P, I, V, Shard(0)):
            g = ag.tensor([3.0, 4.0], {"dp": given}, global_shape=(2,) if given == Shard(0) else None)
            if given == dual:
                w.grad = g
                assert w.grad is not None and w.grad.layout == {"dp": dual}
            else:
                with pytest.raises(ag.LayoutError, match=f"needed: {dual.word}"):
                    w.grad = g


def test_a_plain_gradient_under_a_mesh_is_refused_and_the_fix_works(mesh: Any) -> None:
    w = ag.Parameter([1.0, 2.0], name="w")
    with pytest.raises(ag.LayoutError, match=r"a plain array has no label; needed: Inv(.|\n)*ag.tensor\(gradient"):
        w.grad = numpy.ones(2)
    w.grad = ag.tensor(numpy.ones(2), layout={"dp": I})
    optim.SGD([w], lr=1.0).step()
    assert w.numpy().tolist() == [0.0, 1.0]


def test_a_partial_gradient_of_an_invariant_parameter_is_refused_and_the_fix_works(mesh: Any) -> None:
    w = ag.Parameter([1.0, 2.0], name="w")
    g = ag.tensor([3.0, 4.0], {"dp": P})
    with pytest.raises(ag.LayoutError, match=r"is Partial; needed: Invariant(.|\n)*all_reduce\(gradient, 'dp', to=I\)"):
        w.grad = g
    w.grad = cc.all_reduce(g, "dp", to=I)
    assert w.grad is not None and w.grad.numpy().tolist() == [3.0, 4.0]


def test_without_a_mesh_a_plain_gradient_is_checked() -> None:
    w = ag.Parameter([1.0, 2.0], name="w")
    w.grad = numpy.array([3.0, 4.0])
    assert isinstance(w.grad, ag.Tensor)
    with pytest.raises(ag.ShapeError, match=r"shape \(3,\) was assigned to w of shape \(2,\)"):
        w.grad = numpy.ones(3)
    with pytest.raises(ag.DtypeError, match="dtype float32 was assigned to w of dtype float64"):
        w.grad = numpy.ones(2, numpy.float32)


def test_float16_gradients_are_summed_in_float32() -> None:
    w, x = ag.Parameter(numpy.ones(1, numpy.float16)), ag.Parameter(numpy.float16(1.0))
    for _ in range(3000):  # in float16, 2048 + 1 is 2048
        with ag.Tape() as tape:
            y = w.sum() + x
        tape.backward(y)
    for p in (w, x):
        assert p.grad is not None and p.grad.dtype == numpy.float16 and float(p.grad.numpy().sum()) == 3000.0


# -- the cotangents that a sweep starts from ---------------------------------------------------------------------------


def objective() -> tuple[Any, Any, Any]:
    r = ag.tensor([1.0, 2.0], {"dp": R}, requires_grad=True)
    with ag.Tape() as tape:
        y = (r * r).sum()
    return r, tape, y


@pytest.mark.parametrize("given", ["array", "number", "NumPy's number", V, R, I])
def test_a_replicated_output_takes_only_a_partial_cotangent(mesh: Any, given: Any) -> None:
    """Any other would count once per rank."""
    one = {"array": numpy.array(1.0), "number": 1.0, "NumPy's number": numpy.float32(1.0)}
    ct = one[given] if given in one else ag.tensor(numpy.array(1.0), {"dp": given})
    _, tape, y = objective()
    with pytest.raises(ag.LayoutError, match=r"the output is Replicated, so its cotangent is Partial"):
        tape.backward(y, ct)


def test_the_fixes_of_a_cotangent_of_a_replicated_output() -> None:
    def program(fix: str) -> list[float]:
        with cc.Mesh(dp=2) as mesh:
            r, tape, y = objective()
            if fix == "to=I":
                r = ag.tensor([1.0, 2.0], {"dp": R}, requires_grad=True)
                with ag.Tape() as tape:
                    y = cc.cast((r * r).sum(), "dp", to=I)
                tape.backward(y, ag.tensor(numpy.array(1.0), {"dp": I}))
            else:
                tape.backward(y, ag.tensor(numpy.array([0.75, 0.25])[mesh.axis("dp").rank], {"dp": P}))
            return cc.all_reduce(r.grad, "dp", to=R).numpy().tolist()

    for fix in ("to=I", "addends"):
        assert cc.run(program, 2, fix) == [[2.0, 4.0]] * 2


def test_cotangents_of_other_shapes_and_kinds_are_refused() -> None:
    w = ag.Parameter([1.0, 2.0])
    with ag.Tape() as tape:
        y = w * w
    with pytest.raises(ag.ShapeError, match=r"a cotangent of shape \(1,\)"):
        tape.backward(y, numpy.ones(1))
    with pytest.raises(ag.DtypeError, match="complex128 was given for an output of dtype float64"):
        tape.backward(y, numpy.array([1.0, 2j]))


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_complex_objective_is_refused_with_its_fixes(shape: tuple[int, ...]) -> None:
    """``error ** 2`` for ``abs(error) ** 2``: the sweep took the real part, which falls without a bound."""
    w, target = ag.Parameter(numpy.array([0.5 + 0.5j, -1j])), numpy.array([1 + 2j, 3.0])

    def gradient(loss: Any, *cotangent: Any) -> Any:
        w.zero_grad()
        with ag.Tape() as tape:
            y = loss(w - target).reshape(shape)
        tape.backward(y, *cotangent)
        return w.grad.numpy()

    def squares(error: Any) -> Any:
        return (error**2).sum()

    with pytest.raises(ag.ObjectiveError, match=r"backward of a loss of dtype complex128(.|\n)*fix: np\.abs\(error\)"):
        gradient(squares)
    error = w.numpy() - target
    numpy.testing.assert_allclose(gradient(lambda e: (np.abs(e) ** 2).sum()), 2 * error.conj())
    numpy.testing.assert_allclose(gradient(lambda e: np.real(squares(e))), 2 * error)
    numpy.testing.assert_allclose(gradient(squares, 1.0), 2 * error, err_msg="the derivative of a holomorphic function")


def test_a_cotangent_that_depends_on_the_rank_is_varying(mesh: Any) -> None:
    w = ag.Parameter([1.0, 2.0])
    with ag.Tape() as tape:
        y = (w * w).sum()
    with pytest.raises(ag.LayoutError, match="the cotangent is Varying"):
        tape.backward(y, mesh.axis("dp").rank * 1.0)


# -- constants, and values that are wanted -----------------------------------------------------------------------------


@pytest.mark.parametrize("under", [False, True])
@pytest.mark.parametrize("transform", [ag.grad, ag.value_and_grad, ag.hessian, ag.jacobian, ag.elementwise_grad])
def test_a_constant_has_no_gradient(under: bool, transform: Any) -> None:
    def f(x: Any) -> Any:
        y = (x * x).sum()
        return y if y.layout is None else cc.cast(y, "dp", to=I)

    def run() -> None:
        with pytest.raises(ag.TapeError, match=r"argument 0 is .*a constant: it has no gradient"):
            transform(f)(ag.constant([1.0, 2.0]))

    if under:
        with cc.Mesh(dp=1):
            run()
    else:
        run()


def test_wanted_leaves_and_values_of_other_tapes() -> None:
    w, unused = ag.Parameter([3.0]), ag.Parameter([1.0])
    with ag.Tape():
        h = w * 2.0
        k = w * 3.0
    with ag.Tape() as second:
        y = (h * h * w).sum()
    # k was recorded at the place in `first` that y's operands have in `second`
    found: Any = second.backward(y, wanted=[w, unused, h, k], retain=True)
    assert [None if g is None else g.tolist() for g in found] == [[36.0], None, [36.0], None]
    assert w.grad is None
    with pytest.raises(ag.TapeError, match="a constant: it has no gradient"):
        second.backward(y, wanted=[ag.constant([1.0])])


def test_a_leaf_of_a_recorded_value_is_refused_on_an_active_tape() -> None:
    w = ag.Parameter([3.0])
    with ag.Tape():
        h = w * 2.0
        for make in (ag.tensor, ag.Parameter):
            with pytest.raises(ag.TapeError, match=r"\(x\), where x is .*the gradient of x would end here"):
                make(h)
        assert not ag.tensor(ag.stop_gradient(h)).requires_grad
    assert not ag.tensor(h).requires_grad


def test_a_plain_argument_under_a_mesh_is_named(mesh: Any) -> None:
    w = ag.Parameter([1.0, 2.0])
    f = lambda x: (x * x * w).sum()
    named = (r"argument %s of the function given to ag.%s is a plain array(.|\n)*"
             r"fix: ag.tensor\(argument, layout=\{'dp': I\}\)")  # fmt: skip
    with pytest.raises(ag.LayoutError, match=named % (0, "hessian")):
        ag.hessian(f)(w.numpy())
    with pytest.raises(ag.LayoutError, match=named % (1, "hessian")):
        ag.hessian(lambda a, x: f(x), 1)(w, w.numpy())
    with pytest.raises(ag.LayoutError, match=named % (1, "grad")):
        ag.grad(lambda a, x: f(x), 1)(w, w.numpy())
    assert ag.hessian(f)(ag.tensor(w.numpy(), layout={"dp": I})).numpy().tolist() == [[2.0, 0.0], [0.0, 4.0]]
    with pytest.raises(ag.LayoutError, match=named % (0, "grad")):
        ag.grad(lambda x: (x * x).sum())(w.numpy())


# -- sweeps that fail --------------------------------------------------------------------------------------------------


def test_a_failed_sweep_changes_no_gradient() -> None:
    broken = [True]

    @primitive
    def fragile(x: Any) -> Any:
        return x * 1.0

    def adjoint(ans: Any, x: Any) -> Any:
        def pull(g: Any) -> Any:
            if broken[0]:
                raise RuntimeError("broken")
            return g

        return pull

    defvjp(fragile, adjoint)
    w, v, u = ag.Parameter([3.0]), ag.Parameter([1.0]), ag.Parameter([2.0])
    v.grad = numpy.array([5.0])
    with ag.Tape() as before:
        h = u * u
    with ag.Tape() as tape:
        y = (fragile(w) * v * u * h).sum()
    with pytest.raises(RuntimeError, match="broken"):
        tape.backward(y, retain=True)
    assert w.grad is None and u.grad is None and v.grad is not None and v.grad.numpy() == [5.0]
    assert not before.recording.pending
    broken[0] = False
    tape.backward(y)
    before.backward()
    assert [p.grad.numpy().tolist() for p in (w, v, u)] == [[8.0], [29.0], [36.0]]
