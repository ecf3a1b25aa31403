"""A new transport is one file and one row of a table: the one of `post.py` conforms, checks and differentiates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd.errors import CollectiveMismatch, MeshError
from collectives.transports.job import JOBS

from . import conformance, post

Run = Callable[[Callable[[], Any]], list[Any]]


@pytest.fixture(params=(1, 2, 3))
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setitem(sys.modules, "collectives.transports.post", post)  # as if the file were in that folder
    monkeypatch.setitem(JOBS, "post", ("post", "PostJob"))  # type: ignore[misc]
    kind: Any = "post"
    with cc.World(kind, ranks=request.param) as world:
        yield world.run


def test_it_conforms(run: Run) -> None:
    assert min(run(lambda: conformance.conforms(cc.world(), "?edF"))) > 500


def test_a_gradient(run: Run) -> None:
    def program() -> Any:
        with cc.Mesh(dp=-1):
            w = ag.tensor(np.arange(3.0), layout={"dp": cc.I}, requires_grad=True)
            rows = np.full(3, 1.0 + cc.world().index)
            with ag.Tape() as tape:
                loss = cc.all_reduce(anp.sum(cc.cast(w, "dp", to=cc.R) * rows), "dp", to=cc.I)
            tape.backward(loss)
            return np.asarray(w.grad).tolist(), cc.world().size

    for grad, size in run(program):
        assert grad == [size * (size + 1) / 2] * 3


def test_different_calls_are_told_with_their_lines(run: Run) -> None:
    def program() -> None:
        group = cc.world()
        group.agree(f"call {min(group.index, 1)}")

    if len(run(lambda: None)) > 1:
        with pytest.raises(CollectiveMismatch, match=r"rank 0: call 0\n    at test_post.py:\d+"):
            run(program)


def test_one_sided_memory_that_it_does_not_have_is_refused(run: Run) -> None:
    def program() -> None:
        cc.world().window(np.ones(2))

    if len(run(lambda: None)) > 1:
        with pytest.raises(MeshError, match=r"window on 'world'(.|\n)*World\('threads'\)"):
            run(program)
