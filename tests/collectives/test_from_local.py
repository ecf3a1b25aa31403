"""Out to plain arrays and back: only under no_grad, and no axis is lost (row 6 of the table of real bugs)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd.errors import AbsentError, LayoutError, MeshError, ReplicaMismatch, SavedArrayError, TapeError
from collectives import I, P, R, Rooted, Shard, V

from ..on_mesh import on_mesh
from .launch import launch

# -- out ---------------------------------------------------------------------------------------------------------------


def test_a_value_on_an_active_tape_needs_no_grad() -> None:
    w = ag.Parameter([1.0, 2.0], name="w")
    with ag.Tape():
        y = w * 2.0
        for x in (y, w):
            with pytest.raises(TapeError, match=r"local, where \w is f64\[2\].*\n  fix: with ag\.no_grad") as caught:
                _ = x.local
            assert "test_from_local.py:" in str(caught.value)
        with ag.no_grad():
            assert y.local.tolist() == [2.0, 4.0] and w.local.tolist() == [1.0, 2.0]
        assert ag.stop_gradient(y).local.tolist() == [2.0, 4.0]
        assert ag.tensor([3.0]).local.tolist() == [3.0]  # no tape follows it
    assert y.local.tolist() == [2.0, 4.0]  # nothing is recorded any more


def test_a_communicated_value_is_followed_whatever_it_was_made_of() -> None:
    def program(mesh: Any) -> None:
        with ag.Tape():
            y = cc.all_reduce(ag.tensor([1.0]), "dp")
            with pytest.raises(TapeError, match="local"):
                _ = y.local

    on_mesh(program, dp=2)


def test_what_a_tape_needs_cannot_be_written_to() -> None:
    w = ag.Parameter([1.0, 2.0])
    with ag.Tape(), ag.no_grad():
        pass
    with ag.Tape() as tape:
        y = (w * w).sum()
        with ag.no_grad(), pytest.raises(SavedArrayError):
            w.local[0] = 5.0
    tape.backward(y)


def test_absent() -> None:
    def program(mesh: Any) -> Any:
        y = cc.reduce(ag.tensor([1.0]), "dp", root=1)
        if mesh.axis("dp").rank == 1:
            return y.local.tolist()
        with pytest.raises(AbsentError, match="rooted on rank 1"):
            _ = y.local
        return None

    assert on_mesh(program, dp=2) == [None, [2.0]]


def test_a_handle_is_waited_for() -> None:
    assert on_mesh(lambda mesh: cc.all_reduce_async(ag.tensor([1.0]), "dp").local.tolist(), dp=2) == [[2.0]] * 2


# -- back --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [{"dp": 1, "tp": 1}, {"dp": 2, "tp": 1}, {"dp": 1, "tp": 3}])
def test_every_axis_must_be_named(sizes: dict[str, int]) -> None:
    """On one process too, under a mesh of axes of size 1."""
    def program(mesh: Any) -> None:
        with pytest.raises(LayoutError) as caught:
            cc.from_local(np.ones((2, 3)), {"dp": V})
        text = str(caught.value)
        assert "axis 'tp': no label is given for it" in text and "a label on each of 'dp', 'tp'" in text
        assert "fix: layout={..., 'tp': ...}" in text and "test_from_local.py:" in text
        with pytest.raises(LayoutError, match="axis 'dp': no label is given"):
            cc.from_local(np.ones(2), {})
        with pytest.raises(MeshError, match="'pp' was given"):
            cc.from_local(np.ones(2), {"dp": V, "tp": V, "pp": V})
        x = cc.from_local(np.ones((2, 3)), {"dp": Shard(0), "tp": P})
        assert repr(x.layout) == "{dp: Shard(0), tp: P}" and not x.requires_grad

    on_mesh(program, **sizes)


def test_row_6_unwrapping_cannot_lose_an_axis() -> None:
    """torchtitan#2532: a weight gathered over dp is unwrapped on a mesh of dp and tp, and tp's sum is forgotten.

    Said in full, the sum is there, and the gradient equals that of one process.
    """
    rng = np.random.default_rng(3)
    whole, data = rng.standard_normal(4), rng.standard_normal((2, 2, 4))  # by (dp, tp)

    def program(mesh: Any) -> Any:
        d, t = int(mesh.axis("dp").rank), int(mesh.axis("tp").rank)
        w = ag.Parameter(whole[2 * d : 2 * d + 2], layout={"dp": Shard(0), "tp": I})
        with ag.Tape() as tape:
            u = cc.all_gather(cc.cast(w, "tp", to=R), "dp")  # R on both
            with ag.no_grad():
                plain = u.local
            with pytest.raises(LayoutError, match="axis 'tp': no label is given"):
                cc.from_local(plain, {"dp": R}, requires_grad=True)
            again = cc.from_local(plain, dict(u.layout), requires_grad=True)
            loss = (again * data[d, t]).sum()
            loss = cc.all_reduce(loss, ("dp", "tp"), to=I)
        tape.backward(loss)
        g = again.grad
        assert g is not None and repr(g.layout) == "{dp: P, tp: P}"  # its sums over both axes are still to be taken
        own = cc.all_reduce(cc.reduce_scatter(g, "dp"), "tp", to=I)
        wanted = data.sum((0, 1))[2 * d : 2 * d + 2]
        return np.abs(own.numpy() - wanted).max()

    assert max(on_mesh(program, dp=2, tp=2)) < 1e-12


def test_copies_that_are_not_equal() -> None:
    """The false claim that ranks hold copies is found where it is made."""
    def program(mesh: Any, label: Any) -> None:
        cc.from_local(np.ones(2) * int(mesh.axis("tp").rank), {"dp": V, "tp": label})

    for label in (R, I):
        with pytest.raises(ReplicaMismatch, match="axis 'tp'"):
            on_mesh(lambda mesh, label=label: program(mesh, label), dp=1, tp=3)
    for label in (V, P):
        on_mesh(lambda mesh, label=label: program(mesh, label), dp=1, tp=3)


def test_ranks_that_say_different_things() -> None:
    def program(mesh: Any) -> None:
        cc.from_local(np.ones(2), {"dp": R if mesh.axis("dp").rank else V})

    with pytest.raises(ReplicaMismatch, match="different numbers of replicated tensors"):
        on_mesh(program, dp=2)


def test_rooted() -> None:
    def program(mesh: Any) -> Any:
        return cc.from_local(np.ones(2), {"dp": Rooted(1)}).absent

    assert on_mesh(program, dp=2) == [True, False]


def test_on_processes() -> None:
    outcome = launch("from_local_program.py", 2, limit_s=30, OPENBLAS_NUM_THREADS="1")
    assert outcome.code == 0 and not outcome.is_late, outcome
    assert "LOCAL ok on 2 ranks" in outcome.out
