"""Natural mistakes: each program is refused, or its gradients are right, or it is listed as silent with the reason."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd.errors import GradientWarning, ReplicaWarning, RingtapeError
from autograd.nn import Module
from parallel import verify

from ..grouped import in_groups
from .wrong_programs import (  # noqa: F401 - they register their programs
    PROGRAMS,
    SHAPES,
    Program,
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


def outcome(program: Program, axes: dict[str, int]) -> tuple[str, str]:
    """The name of the error or warning, "exact" or "silent"; and the error's text, or the gradient that is wrong."""

    def rank_main() -> Any:
        with cc.Mesh(**axes) as mesh:
            return program.run(mesh)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ReplicaWarning)
            warnings.simplefilter("error", GradientWarning)
            results = cc.run(rank_main, int(numpy.prod(list(axes.values()))))
    except RingtapeError as error:
        return type(error).__name__, str(error)
    for found in results:
        found, expected = found if isinstance(found, tuple) else (found, serial)
        wanted = expected()
        for name, value in found.items():
            gradient, part = value if isinstance(value, tuple) else (value, ...)
            if not agrees(gradient, numpy.asarray(wanted[name])[part]):
                return "silent", f"the gradient of {name} is {gradient}"
    return "exact", ""


def agrees(found: Any, wanted: Any) -> bool:
    difference = numpy.linalg.norm(found - wanted) if found.shape == wanted.shape else numpy.inf
    return bool(difference <= 1e-10 * max(float(numpy.linalg.norm(wanted)), 1e-6))


def topic(name: str) -> str:
    return PROGRAMS[name].run.__module__.rpartition(".")[2]


def is_expected(program: Program, found: str) -> bool:
    return found == program.outcome or (program.outcome == "RingtapeError" and found not in ("exact", "silent"))


def test_there_are_enough_programs() -> None:
    assert sum(program.outcome != "exact" for program in PROGRAMS.values()) >= 100
    assert not set(PROGRAMS) & set(SILENT)


@in_groups(topic)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_program_is_refused_or_exact(name: str) -> None:
    program = PROGRAMS[name]
    assert program.axes is not None
    found, text = outcome(program, program.axes)
    assert is_expected(program, found), f"{found}: {text}"
    for words in program.says:
        assert words in text, text


@in_groups(topic)
@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.alone])
def test_a_layout_refuses_it_on_one_rank_too(name: str) -> None:
    program = PROGRAMS[name]
    found, text = outcome(program, dict.fromkeys(program.axes or {}, 1))
    assert is_expected(program, found), f"{found}: {text}"


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
