"""No rank's own dependences make a backward hang or lose a sum, and recording on some ranks only is an error on all."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from collectives import I

from .. import summary
from .launch import launch
from .recording_cases import communicates, faults, program, told, used_separately, work

RANKS = 3
EVERYTHING = work(RANKS)
TOLD = [w for w in EVERYTHING if communicates(w[0]) and w[0].name.split()[0] != "send/recv"]


def test_gradients_of_uneven_dependence() -> None:
    """A rank that leaves the result out of its loss, and a rank whose operand needs no gradient, everywhere."""
    chosen = used_separately(EVERYTHING)
    assert {"send/recv", "all_reduce", "broadcast", "scatter"} <= {w[0].name.split()[0] for w in chosen}
    assert faults(chosen, cc.run(lambda: program(chosen), RANKS)) == []


@pytest.mark.parametrize("i", range(len(TOLD)), ids=[w[0].name for w in TOLD])
def test_no_grad_on_one_rank_is_an_error_on_all(i: int) -> None:
    case, setting, plan = TOLD[i]

    def body() -> str:
        with cc.Mesh(a=RANKS) as mesh:
            return told(case, setting, plan, mesh, i % RANKS)

    said = cc.run(body, RANKS)
    assert all("not recorded" in text for text in said), said
    assert all(f"rank {i % RANKS}" in text for text in said)


@pytest.mark.parametrize("odd", ["sender", "receiver"])
def test_no_grad_on_one_end_of_a_send(odd: str) -> None:
    def body() -> None:
        rank = cc.world().rank
        alone = ag.no_grad() if rank == ["sender", "receiver"].index(odd) else nullcontext()
        with cc.Mesh(a=2), ag.Tape(), alone:
            if rank == 0:
                cc.send(ag.tensor([1.0]), "a", 1)
                cc.recv("a", 1)
            else:
                cc.recv("a", 0)
                cc.send(ag.tensor([1.0]), "a", 0)

    with pytest.raises(cc.CollectiveMismatch, match="not recorded"):
        cc.run(body, 2)


@pytest.mark.parametrize("where", ["nobody", "sender", "receiver"])
def test_pipeline_of_one_value(where: str) -> None:
    """A received value that reaches the loss on one stage, the other or none: the sender goes on."""
    def body() -> list[float] | None:
        with cc.Mesh(a=2) as mesh:
            rank = int(mesh.axis("a").rank)
            x = ag.tensor([2.0, 3.0], requires_grad=True)
            with ag.Tape() as tape:
                part = ag.tensor(0.0)
                if rank == 0:
                    cc.send(x * x, "a", 1)
                    part = (x * 5.0).sum() if where == "sender" else part
                else:
                    y = cc.recv("a", 0)
                    part = y.sum() if where == "receiver" else part
                loss = cc.all_reduce(part, "a", to=I)
            tape.backward(loss)
            return None if x.grad is None else x.grad.numpy().tolist()

    expected = {"nobody": [0.0, 0.0], "sender": [5.0, 5.0], "receiver": [4.0, 6.0]}[where]
    assert cc.run(body, 2) == [expected, None]


def test_a_stage_without_a_loss_of_its_own() -> None:
    """backward() without outputs sends and receives what the other stage's needs."""
    def body() -> list[float] | None:
        with cc.Mesh(a=2) as mesh:
            x = ag.tensor(np.array([2.0, 3.0]), requires_grad=True)
            with ag.Tape() as tape:
                if int(mesh.axis("a").rank) == 0:
                    cc.send(x * x, "a", 1)
                    loss = cc.reduce(ag.tensor(0.0), "a", 1)
                else:
                    loss = cc.reduce(cc.recv("a", 0).sum(), "a", 1)
            tape.backward(() if loss.absent else loss)
            return None if x.grad is None else x.grad.numpy().tolist()

    assert cc.run(body, 2) == [[4.0, 6.0], None]


def test_forward_mode_carries_zeros() -> None:
    """Where a rank's operand does not depend on the argument, forward mode still takes part, with zeros."""
    def body() -> float:
        with cc.Mesh(a=RANKS) as mesh:
            rank = int(mesh.axis("a").rank)
            x, dx = ag.tensor([1.0]), ag.tensor([10.0 + rank])
            _, dy = ag.jvp(lambda x: cc.all_reduce(x if rank == 1 else ag.tensor([7.0]), "a"), (x,), (dx,))
            return float(dy.numpy()[0])

    assert cc.run(body, RANKS) == [11.0] * RANKS


@pytest.mark.parametrize("which", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_on_processes(which: str) -> None:
    environment = {"RINGTAPE_CHECK": "always", "OPENBLAS_NUM_THREADS": "1"}
    outcome = launch("recording_program.py", RANKS, which, limit_s=60, **environment)
    shown = f"{outcome.out}\n{outcome.err}"
    assert not outcome.is_late, f"killed after 60 s\n{shown}"
    assert outcome.code == 0 and "OWNERSHIP" in outcome.out, shown
    summary.line("recording that differs between ranks, under mpiexec", outcome.out.strip())
