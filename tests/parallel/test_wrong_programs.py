"""Natural mistakes: each program is refused, or its gradients are right, or it is listed as silent with the reason."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

import autograd as ag
import collectives as cc
from autograd.doors import door
from autograd.errors import GradientWarning, ReplicaWarning
from autograd.nn import Module
from parallel import verify

from ..proofs.cases import Case, prove_exact, prove_refused
from .wrong_programs import (  # noqa: F401 - they register their programs
    PROGRAMS,
    SHAPES,
    T,
    X,
    communication,
    data_parallel,
    draw,
    pipelines,
    serial,
    tensor_parallel,
    training,
)
from .wrong_programs.silent import SILENT, Silent

RANKS = 3
TOPICS = "communication", "data_parallel", "pipelines", "tensor_parallel", "training"
for _topic in TOPICS:  # they register their programs
    import_module(f"tests.parallel.wrong_programs.{_topic}")


REFUSED = [name for name, case in PROGRAMS.items() if case.wrong is not None]


@pytest.fixture
def warnings_refuse() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplicaWarning)
        warnings.simplefilter("error", GradientWarning)
        yield


def test_there_are_enough_programs() -> None:
    assert len(REFUSED) >= 100
    assert not set(PROGRAMS) & set(SILENT)


@pytest.mark.usefixtures("warnings_refuse")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_program_is_refused_or_exact(name: str) -> None:
    if name in REFUSED:
        try:
            prove_refused(PROGRAMS[name])
        except AssertionError:
            door("addends")  # the extra that tells some of them
            raise
    else:
        prove_exact(PROGRAMS[name])


@pytest.mark.usefixtures("warnings_refuse")
@pytest.mark.parametrize("name", [name for name, case in PROGRAMS.items() if case.on_one_rank])
def test_a_layout_refuses_it_on_one_rank_too(name: str) -> None:
    prove_refused(PROGRAMS[name], PROGRAMS[name].alone)


def test_the_runners_can_fail() -> None:
    """A program that is right is not refused, another error is not the one, and a factor of the ranks is not exact."""
    _, right = next((name, case.right) for name, case in PROGRAMS.items() if case.right and case.axes == {"dp": 3})
    for everywhere in (False, True):
        with pytest.raises(AssertionError, match="not refused"):
            prove_refused(Case(wrong=right, on_every_rank=everywhere))
    wrong = next(case for case in PROGRAMS.values() if case.wrong and case.error == "LayoutError")
    with pytest.raises(AssertionError, match="^LayoutError: "):
        prove_refused(replace(wrong, error="ReplicaMismatch"))
    with pytest.raises(AssertionError, match="is not in the text"):
        prove_refused(replace(wrong, says=("no such words",)))

    gradient = serial()["W1"]
    assert prove_exact(Case(right=lambda mesh: {"W1": gradient}, serial=serial)) == [{"W1"}] * 3
    with pytest.raises(AssertionError, match="(?s)W1: .* is not"):
        prove_exact(Case(right=lambda mesh: {"W1": 3 * gradient}, serial=serial))


# -- what remains silent -----------------------------------------------------------------------------------------------
class Net(Module):
    """The parameters of the network, and a loss of them."""

    def __init__(self, loss: Any) -> None:
        for name, shape in SHAPES.items():
            setattr(self, name, ag.Parameter(draw(name, *shape)))
        self.loss = loss

    def forward(self, x: Any, t: Any) -> Any:
        return self.loss({name: getattr(self, name) for name in SHAPES}, x, t)


def report(program: Silent, is_wrong: bool = True) -> Any:
    """What `verify` reports of a silent program, or of the serial loss computed on every rank."""

    def distributed(p: Any, x: Any, t: Any) -> Any:
        mesh = cc.current_mesh()
        if not is_wrong:  # every rank computes the whole
            return program.serial(p, cc.all_gather(x, "dp", to=cc.I), cc.all_gather(t, "dp", to=cc.I))
        return program.loss(mesh, p, cc.cast(x, "dp", to=cc.V), cc.cast(t, "dp", to=cc.V))

    def rank_main() -> Any:
        with cc.Mesh(dp=-1):
            x, t = (cc.shard(ag.tensor(a, layout={"dp": cc.R}), "dp") for a in (X, T))
            return verify(Net(distributed), lambda net, x, t: net(x, t), x, t, serial=Net(program.serial))

    return cc.run(rank_main, RANKS)[0]


@pytest.mark.parametrize("name", SILENT)
def test_verify_sees_every_silent_mistake(name: str) -> None:
    program = SILENT[name]
    assert program.reason
    assert not report(program).passed
    assert report(program, is_wrong=False).passed
