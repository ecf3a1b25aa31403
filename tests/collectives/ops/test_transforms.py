"""Transforms through collectives on threads and under MPI, against one process; see `transform_cases`."""

from __future__ import annotations

import re
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.transforms import basis, jacobians, rematerialise
from collectives import I, R, Shard, V

from ..launch import launch
from . import transform_cases


def run_cases(ranks: int, n: int, every: int = 1, only: str = "") -> int:
    def program() -> int:
        ran = 0
        for title, check in transform_cases.cases(n, every):
            if only in title:
                with cc.Mesh(dp=-1):
                    try:
                        check()
                    except BaseException as error:
                        error.add_note(title)
                        raise
                ran += 1
        return ran

    counts = cc.run(program, ranks)
    assert len(set(counts)) == 1
    return counts[0]


@pytest.mark.parametrize(("ranks", "n", "every"), [(1, 5, 7), (2, 5, 5), (3, 5, 7), (4, 5, 13), (3, 2, 7), (4, 3, 13)])
def test_on_threads(ranks: int, n: int, every: int) -> None:
    """Uneven shards, and with fewer elements than ranks empty ones; each `every`-th case."""
    assert run_cases(ranks, n, every) > 10


PARTICULAR = ["third derivative", "numbers that vary", "containers", "a cotangent on one rank", "started and waited",
              "a plan", "random numbers", "parts that do not fit"]  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 3])
def test_particular_cases(ranks: int) -> None:
    assert [run_cases(ranks, 5, only=title) for title in PARTICULAR] == [1] * len(PARTICULAR)


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_all_cases_on_threads(ranks: int) -> None:
    for n in (1, 2, 3, 5, 7):
        assert run_cases(ranks, n) > 150


@pytest.mark.parametrize(("outer", "inner"), [(1, 1), (2, 1), (1, 3), (2, 2)])
def test_on_two_axes(outer: int, inner: int) -> None:
    cc.run(lambda: transform_cases.two_axes(outer, inner), outer * inner)


@pytest.mark.parametrize(("ranks", "every"), [(2, 11)])
def test_under_mpi(ranks: int, every: int) -> None:
    outcome = launch("transforms_program.py", ranks, str(every), limit_s=100, RINGTAPE_CHECK="always",
                     OPENBLAS_NUM_THREADS="1")  # fmt: skip
    shown = f"{outcome.out}\n{outcome.err}"
    assert not outcome.is_late and outcome.code == 0, shown
    found = re.search(r"TRANSFORMS (\d+) cases", outcome.out)
    assert found is not None and int(found[1]) > 10, shown


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize(("on", "ranks"), [("here", 3), ("here", 4), ("openmpi", 3)])
def test_all_under_mpi(on: str, ranks: int) -> None:
    outcome = launch("transforms_program.py", ranks, "1", limit_s=600, on=on, RINGTAPE_CHECK="always",
                     OPENBLAS_NUM_THREADS="1")  # fmt: skip
    assert outcome.code == 0 and "TRANSFORMS" in outcome.out, f"{outcome.out}\n{outcome.err}"


def test_every_rank_makes_the_same_number_of_sweeps() -> None:
    """One per element of the whole, also where a rank holds two, one or none of them."""

    def program() -> int:
        with cc.Mesh(dp=-1) as mesh:
            rank = int(mesh.axis("dp").rank)
            part = numpy.array_split(numpy.ones(5), 3)[rank]
            x = ag.tensor(part, {"dp": Shard(0)}, global_shape=(5,))
            heard = []
            with ag.events.listening(lambda phase, way, what: heard.append((phase, way, what))):
                ag.jacobian(lambda x: x * cc.all_reduce(np.sum(x), "dp", to=R))(x)
            return heard.count(("begin", "backward", "all_reduce"))

    assert cc.run(program, 3) == [5, 5, 5]


def test_what_is_refused_on_every_rank() -> None:
    def program() -> list[str]:
        texts = []
        with cc.Mesh(dp=-1) as mesh:
            x = ag.tensor(numpy.ones(2), {"dp": V})
            shard = ag.tensor(numpy.ones(2), {"dp": Shard(0)})
            w = ag.tensor(numpy.ones(2), {"dp": I})
            for call in (
                lambda: ag.grad(lambda x: np.sum(x * x))(x),
                lambda: ag.jvp(lambda w: w * 2.0, (w,), (x,)),
                lambda: ag.make_vjp(lambda w: w * 2.0)(w)[0](x),
                lambda: ag.tensor_jacobian_product(lambda s: np.stack([s, s]))(shard, ag.tensor(numpy.ones(2))),
            ):
                with pytest.raises(ag.LayoutError) as error:
                    call()
                texts.append(str(error.value))
            far = ag.jacobian(lambda x: x * 2.0)
        if mesh.axis("dp").size > 1:
            with pytest.raises(ag.MeshError, match="no mesh is current"):
                far(x)
        return texts

    for texts in cc.run(program, 2):
        for text, word in zip(texts, ("Varying", "Invariant", "Invariant", "gather it first"), strict=True):
            assert "'dp'" in text or "dp: " in text, text
            assert word in text and "fix:" in text, text


def test_a_dry_world_knows_the_shapes_and_layouts() -> None:
    with cc.dry(ranks=4, rank=1, mesh={"dp": 4}) as run:
        x = ag.tensor(numpy.ones((2,), "float32"), {"dp": Shard(0)}, global_shape=(7,))
        j = ag.jacobian(ag.checkpoint(lambda x: cc.all_gather(np.tanh(x), "dp", dim=0)))(x)
        h = ag.hessian(lambda x: cc.all_reduce(np.sum(np.tanh(x)), "dp", to=I))(x)
        assert j.array.shape == (7, 2) and j.layout["dp"] == Shard(1) and j.global_shape == (7, 7)
        assert h.array.shape == (7, 2) and h.layout["dp"] == Shard(1)
    calls = {t.operation: t.calls for t in run.traffic() if t.direction == "backward"}
    assert calls["all_gather"] == 7  # a reduce-scatter for each row


# -- the checks are seen to fail ---------------------------------------------------------------------------------------


def fails(only: str, ranks: int = 3, n: int = 5) -> None:
    with pytest.raises((AssertionError, ag.RingtapeError, ValueError, IndexError)):
        run_cases(ranks, n, only=only)


def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as m:  # every rank seeds its addend: p times too much
        m.setattr(basis, "_copy_counts", lambda layout: True)
        fails("jacobian R->R reverse")
        fails("jacobian P->R forward")
        fails("products R")
    shards = basis.Basis._shards

    def local(self: Any, layout: Any) -> None:
        shards(self, layout)
        self.shape, self.offset = self.local, [0] * len(self.local)

    with monkeypatch.context() as m:  # a loop over the local index: ranks make different numbers of sweeps
        m.setattr(basis.Basis, "_shards", local)
        fails("jacobian R->S reverse")
        fails("jacobian S->R forward")
    with monkeypatch.context() as m:  # the labels of the result are not shifted
        m.setattr(jacobians, "_shift_dims", lambda layout, by: layout)
        fails("jacobian S->R reverse")
    head = rematerialise._Head(False)
    with monkeypatch.context() as m:  # communications without a cotangent are left out
        m.setattr(rematerialise, "HEAD_OF_COMMUNICATION", head)
        fails("a cotangent on one rank")
    with monkeypatch.context() as m:  # masks are drawn anew
        m.setattr(rematerialise.random, "set_state", lambda state: None)
        fails("random numbers")
