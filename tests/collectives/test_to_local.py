"""Out of layouts on the tape and back: each declared layout of the cotangent gives the gradient of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.errors import ArgumentError, LayoutError, MeshError, ReplicaMismatch
from collectives import C, I, P, R, Rooted, Shard, V

from ..on_mesh import on, on_mesh
from .launch import launch

W = numpy.array([0.5, -1.0, 2.0, 0.25])
ROWS = numpy.random.default_rng(5).standard_normal((4, 5, 4))  # of each rank


def _bent(x: Any, rows: Any) -> Any:
    """A function whose labels nobody could infer: a softmax over rows of this rank, which are plain arrays."""
    scores = rows @ x
    weights = np.exp(scores - scores.max())
    return np.tanh(weights / weights.sum() @ rows) * x


def _rank(mesh: Any) -> int:
    return int(mesh.axis("dp").rank)


def _used_by_each(w: Any, mesh: Any) -> Any:
    y = _bent(cc.to_local(w, {"dp": P}), ROWS[_rank(mesh)]).sum()
    return cc.all_reduce(cc.from_local(y, {"dp": P}), "dp", to=I)


def _used_by_each_replicated(w: Any, mesh: Any) -> Any:
    return _used_by_each(cc.cast(w, "dp", to=R), mesh)


def _summed_directly(w: Any, mesh: Any) -> Any:
    return cc.all_reduce(_bent(cc.to_local(w, {"dp": P}), ROWS[_rank(mesh)]).sum(), "dp", to=I)


def _in_parts(w: Any, mesh: Any) -> Any:
    """Parts of each rank, joined to a Shard, which a weight of all ranks multiplies."""
    n = 1 + _rank(mesh)
    y = _bent(cc.to_local(w, {"dp": P}), ROWS[_rank(mesh)])[:n]
    y = cc.from_local(y, {"dp": Shard(0)})
    assert y.global_shape == (sum(range(1, mesh.axis("dp").size + 1)),)
    return cc.all_reduce((y * y).sum(), "dp", to=I)


def _one_computation(w: Any, mesh: Any) -> Any:
    """The same on all ranks, with plain arrays: the copies are one value again."""
    y = cc.from_local(_bent(cc.to_local(w, {"dp": P}), ROWS[0]), {"dp": I})
    return (y * ag.constant(W)).sum()


def _one_computation_used_by_each(w: Any, mesh: Any) -> Any:
    y = cc.from_local(_bent(cc.to_local(w, {"dp": P}), ROWS[0]), {"dp": R})
    return cc.all_reduce((y * ROWS[_rank(mesh)]).sum(), "dp", to=I)


def _invariant(w: Any, mesh: Any) -> Any:
    return _bent(cc.to_local(w, {"dp": I}), ag.constant(ROWS[0])).sum()


def _replicated_as_one(w: Any, mesh: Any) -> Any:
    return _bent(cc.to_local(cc.cast(w, "dp", to=R), {"dp": I}), ag.constant(ROWS[0])).sum()


def _addends(w: Any, mesh: Any) -> Any:
    """A linear function of addends, with arrays that have no labels."""
    addends = (cc.cast(w, "dp", to=R) * ROWS[_rank(mesh)]).sum(axis=0)
    y = cc.to_local(cc.declare_partial(addends, "dp"), {"dp": R}) * W
    y = cc.all_reduce(cc.from_local(y, {"dp": P}), "dp", to=I)
    return (y * y).sum()


def _rows(mesh: Any, whole: Any) -> Any:
    return numpy.array_split(whole, mesh.axis("dp").size)[_rank(mesh)]


def _shard(w: Any, mesh: Any) -> Any:
    """A softmax over the rows of a part, which is refused of a Shard."""
    y = np.outer(cc.cast(w, "dp", to=R), ag.constant(W))[:, :3]
    y = cc.to_local(cc.shard(y, "dp"), {"dp": Shard(0)})
    y = np.exp(y - y.max()) * _rows(mesh, numpy.outer(W, W)[:, :3])
    return cc.all_reduce((cc.from_local(y, {"dp": Shard(0)}) ** 2).sum(), "dp", to=I)


def _own(w: Any, mesh: Any) -> Any:
    y = cc.to_local(cc.cast(w, "dp", to=V), {"dp": V})
    return cc.all_reduce(cc.from_local(_bent(y, ROWS[_rank(mesh)]).sum(), {"dp": P}), "dp", to=I)


def _each(n: int) -> Callable[[Any], Any]:
    return lambda w: sum(_bent(w, ROWS[r]).sum() for r in range(n))


def _serial_parts(n: int) -> Callable[[Any], Any]:
    return lambda w: sum((_bent(w, ROWS[r])[: r + 1] ** 2).sum() for r in range(n))


def _serial_shard(n: int) -> Callable[[Any], Any]:
    def loss(w: Any) -> Any:
        y, total = np.outer(w, W)[:, :3], 0.0
        for at in numpy.array_split(numpy.arange(4), n):
            part = y[at]
            total = total + ((np.exp(part - part.max()) * numpy.outer(W, W)[at, :3]) ** 2).sum()
        return total

    return loss


# declaration -> the program on a mesh, and the same objective on one process for so many ranks
DECLARED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[int], Callable[[Any], Any]]]] = {
    "I, P; to P": (_used_by_each, _each),
    "R, P; to P": (_used_by_each_replicated, _each),
    "I, P; summed as V": (_summed_directly, _each),
    "I, P; to Shard": (_in_parts, _serial_parts),
    "I, P; to I": (_one_computation, lambda n: lambda w: (_bent(w, ROWS[0]) * W).sum()),
    "I, P; to R": (_one_computation_used_by_each, lambda n: lambda w: (_bent(w, ROWS[0]) * ROWS[:n].sum((0, 1))).sum()),
    "I, I": (_invariant, lambda n: lambda w: _bent(w, ROWS[0]).sum()),
    "R, I": (_replicated_as_one, lambda n: lambda w: _bent(w, ROWS[0]).sum()),
    "P, R; to P": (_addends, lambda n: lambda w: ((w * ROWS[:n].sum((0, 1)) * W) ** 2).sum()),
    "Shard, Shard; to Shard": (_shard, _serial_shard),
    "V, V; to P": (_own, _each),
}


def difference(name: str, mesh: Any) -> float:
    """The greatest difference of the gradient of a program from that of one process."""
    program, serial = DECLARED[name]
    w = ag.Parameter(W)
    with ag.Tape() as tape:
        loss = program(w, mesh)
    tape.backward(loss)
    wanted = ag.grad(serial(mesh.axis("dp").size))
    mesh_free = _without_mesh(lambda: (serial(mesh.axis("dp").size)(W), wanted(W)))
    assert w.grad is not None
    return max(abs(float(loss) - mesh_free[0]), float(abs(w.grad.numpy() - mesh_free[1]).max()))


def _without_mesh(work: Callable[[], Any]) -> Any:
    """The result of work outside any mesh, in a thread of its own."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def _nonlinear_addends(w: Any, mesh: Any) -> Any:
    addends = (cc.cast(w, "dp", to=R) * ROWS[_rank(mesh)]).sum(axis=0)
    y = np.tanh(cc.to_local(cc.declare_partial(addends, "dp"), {"dp": R}))
    return cc.all_reduce(cc.from_local(y, {"dp": P}), "dp", to=I).sum()


def _rows_of_each_as_one(w: Any, mesh: Any) -> Any:
    return (cc.to_local(w, {"dp": I}) * ROWS[_rank(mesh)]).sum()  # torch's default: silently this rank's gradient alone


def _different_as_copies(label: Any) -> Callable[[Any, Any], Any]:
    def program(w: Any, mesh: Any) -> Any:
        y = cc.to_local(w, {"dp": P}) * ROWS[_rank(mesh)]
        return cc.all_reduce(cc.from_local(y, {"dp": label}).sum(), "dp", to=I)

    return program


# a program whose declaration is wrong -> its type, and words of its text
WRONG: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "I, I: rows of each rank": (_rows_of_each_as_one, LayoutError, "Invariant .* does not mix with Varying"),
    "P, R: not linear": (_nonlinear_addends, ReplicaMismatch, "cotangent=R was declared, and backward found"),
    "to I: different": (_different_as_copies(I), ReplicaMismatch, "from_local was given .* as equal copies"),
    "to R: different": (_different_as_copies(R), ReplicaMismatch, "from_local was given .* as equal copies"),
}


def wrong(ranks: int) -> list[str]:
    """The wrong programs that are refused on so many ranks: copies are equal on one rank."""
    return [name for name, (_, kind, _) in WRONG.items() if ranks > 1 or kind is LayoutError]


def refusal(name: str, mesh: Any) -> bool:
    """Whether a wrong program is refused with the error of its row."""
    program, kind, words = WRONG[name]
    w = ag.Parameter(W)
    with pytest.raises(kind, match=words):
        with ag.Tape() as tape:
            loss = program(w, mesh)
        tape.backward(loss)
    return True


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_each_declaration_gives_the_gradient_of_one_process(ranks: int) -> None:
    for name in DECLARED:
        assert max(on(ranks, lambda mesh, name=name: difference(name, mesh))) < 1e-12, name


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_wrong_declarations_are_refused(ranks: int) -> None:
    for name in wrong(ranks):
        assert all(on(ranks, lambda mesh, name=name: refusal(name, mesh))), name


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_on_processes(ranks: int) -> None:
    outcome = launch("to_local_program.py", ranks, limit_s=60, OPENBLAS_NUM_THREADS="1")
    assert outcome.code == 0 and not outcome.is_late, outcome
    assert f"TO_LOCAL {len(DECLARED)} declarations and {len(wrong(ranks))} wrong ones on {ranks} ranks" in outcome.out


def test_labels_that_a_cotangent_cannot_have() -> None:
    """On one process too: what is not in the table is refused where it is declared, with what could be."""
    legal = {("R", "P"), ("I", "P"), ("I", "I"), ("R", "I"), ("P", "R"), ("V", "V"), ("Shard(0)", "Shard(0)")}

    def program(mesh: Any) -> int:
        refused = 0
        for label in (R, I, P, V, Shard(0), Rooted(0)):
            x = ag.tensor(W, {"dp": label})
            for declared in (R, I, P, V, Shard(0), Shard(1), C):
                if (repr(label), repr(declared)) in legal:
                    assert cc.to_local(x, {"dp": declared}).layout["dp"] is (I if declared is I else V)
                    continue
                with pytest.raises(LayoutError, match="axis 'dp': the cotangents of a value that is .*\n  fix: "):
                    cc.to_local(x, {"dp": declared})
                refused += 1
        return refused

    assert on_mesh(program, dp=1) == [35]


def test_other_axes_keep_their_labels() -> None:
    def program(mesh: Any) -> Any:
        w = ag.Parameter(W)
        d, t = _rank(mesh), int(mesh.axis("tp").rank)
        with ag.Tape() as tape:
            local = cc.to_local(w, {"tp": P})
            assert repr(local.layout) == "{dp: I, tp: V}"
            y = cc.from_local(local * ag.tensor(ROWS[t], {"dp": C, "tp": V}), {"tp": P})
            assert repr(y.layout) == "{dp: I, tp: P}"
            part = cc.to_local(cc.cast(y, "dp", to=R), {"dp": P, "tp": R})
            whole = cc.from_local(part * ag.constant(W) * (d + 1.0), {"dp": P, "tp": P})
            loss = cc.all_reduce(whole.sum(), ("dp", "tp"), to=I)
        tape.backward(loss)
        return w.grad.numpy()

    for found in on_mesh(program, dp=2, tp=2):
        numpy.testing.assert_allclose(found, ROWS[:2].sum((0, 1)) * W * 3.0, rtol=1e-12)


def test_a_value_with_another_label_is_not_entered() -> None:
    def program(mesh: Any) -> None:
        x = ag.tensor(W, {"dp": R})
        for label in (I, P, V, Shard(0)):
            with pytest.raises(LayoutError, match="the value is Replicated already; needed: Varying"):
                cc.from_local(x, {"dp": label})
        assert cc.from_local(x, {"dp": R}) is x
        with pytest.raises(ArgumentError, match="requires_grad=True was given with a Tensor"):
            cc.from_local(ag.tensor(W), {"dp": V}, requires_grad=True)
        with pytest.raises(MeshError):
            cc.from_local(ag.tensor(W), {"pp": V})
        for wrong in (P, None, {}, {"dp": "P"}):
            with pytest.raises(ArgumentError, match="needed: a label for each axis to leave"):
                cc.to_local(x, wrong)

    on_mesh(program, dp=1)


def test_parts_of_two_axes_and_a_stated_shape() -> None:
    def program(mesh: Any) -> Any:
        x = cc.from_local(ag.tensor(numpy.ones((1 + _rank(mesh), 2))), {"dp": Shard(0), "tp": Shard(1)})
        y = cc.from_local(ag.tensor(numpy.ones((2, 2))), {"dp": Shard(0), "tp": V}, global_shape=(4, 2))
        return x.global_shape, y.layout["dp"].extent

    assert on_mesh(program, dp=2, tp=2) == [((3, 4), 4)] * 4
