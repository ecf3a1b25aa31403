"""Wrong arguments of the public functions of `collectives` and `parallel`: each a typed error, on every rank."""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn
from parallel import DataParallel, enter, verify

ODD: list[Any] = [None, 5, 1.5, "nope", b"x", ["dp"], ("dp", "dp"), (), {}, object(), True, -1, 99, float("nan"),
                  np.array([1, 2]), cc.R, "R", print]  # fmt: skip
GOOD: dict[str, Callable[[], Any]] = {
    "x": lambda: ag.tensor(np.arange(4.0)), "axis": lambda: "dp", "root": lambda: 0, "source": lambda: 0,
    "dest": lambda: 0, "src": lambda: 0, "dst": lambda: 0, "to": lambda: cc.R, "dim": lambda: 0, "dims": lambda: 0,
    "axes": lambda: "dp", "widths": lambda: 1, "pairs": lambda: [(0, 0)], "like": lambda: ag.tensor(np.arange(4.0)),
    "layout": lambda: {"dp": cc.V}, "array": lambda: np.arange(4.0), "tensors": lambda: [ag.tensor([1.0])],
    "mesh": cc.current_mesh, "split_dim": lambda: 0, "concat_dim": lambda: 0, "addends": lambda: [np.ones(2)],
    "indices": lambda: [0], "mode": cc.checks.modes.check_mode,
}  # fmt: skip
OTHERS = {"run", "world", "wrap", "check_collective", "dry", "timeline", "in_order"}
"""Functions that start programs or declare collectives, and are tested elsewhere."""


def functions() -> list[tuple[str, Any]]:
    named = [(name, getattr(cc, name)) for name in cc.__all__ if name not in OTHERS]
    return [(name, f) for name, f in named if callable(f) and not inspect.isclass(f)]


def is_ours(error: BaseException) -> bool:
    """Whether a line of the library was run before the error."""
    return any("/tests/" not in f.filename for f in traceback.extract_tb(error.__traceback__))


def test_no_argument_of_a_collective_gives_an_untyped_error() -> None:
    mode = cc.checks.modes.check_mode()
    wrong = []
    calls = 0
    try:
        with cc.Mesh(dp=1):
            for name, function in functions():
                parameters = list(inspect.signature(function).parameters.values())
                needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
                for target in parameters:
                    if target.kind in (target.VAR_POSITIONAL, target.VAR_KEYWORD):
                        continue
                    for odd in ODD:
                        given = [odd if p is target else GOOD.get(p.name, lambda: None)() for p in needed]
                        calls += 1
                        try:
                            found = function(*given, **({} if target in needed else {target.name: odd}))
                            if isinstance(found, cc.Pending) or hasattr(found, "wait"):
                                found.wait()
                        except ag.RingtapeError:
                            pass
                        except Exception as error:
                            if is_ours(error):
                                wrong.append(f"{name}({target.name}={odd!r}): {error!r}")
    finally:
        cc.check(mode)
    assert not wrong, "\n".join(wrong)
    assert calls > 1500


@pytest.mark.parametrize(
    "call",
    [
        lambda x: cc.all_reduce(x, None),
        lambda x: cc.all_reduce(x, ["nope"]),
        lambda x: cc.all_reduce(None, "dp"),
        lambda x: cc.all_reduce(x, "dp", to="R"),
        lambda x: cc.all_reduce(x, "dp", algorithm=5),
        lambda x: cc.broadcast(x, "dp", root=1.0),
        lambda x: cc.all_gather(x, "dp", 7),
        lambda x: cc.permute(x, "dp", 3),
        lambda x: cc.halo_exchange(x, "dp", None),
        lambda x: cc.mean(x, 5),
    ],
)
def test_a_wrong_argument_on_one_rank_ends_all_ranks(call: Callable[[Any], Any]) -> None:
    def program() -> None:
        with cc.Mesh(dp=3):
            x = ag.tensor(np.arange(4.0))
            if cc.world().rank == 1:
                call(x)
            cc.all_reduce(x, "dp")
            raise AssertionError("rank 1 has refused its call")

    begun = time.monotonic()
    with pytest.raises(ag.RingtapeError):
        cc.run(program, ranks=3)
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    "call, kind",
    [
        (lambda model: DataParallel(None, "dp"), TypeError),
        (lambda model: DataParallel(model, None), ValueError),
        (lambda model: DataParallel(model, ("dp", 1)), ValueError),
        (lambda model: DataParallel(model, "nope")(np.ones((1, 2), "float32")), ValueError),
        (lambda model: enter(None, "dp"), TypeError),
        (lambda model: enter([1.0], "dp"), TypeError),
        (lambda model: enter(model.parameters(), None), ValueError),
        (lambda model: verify(None, lambda m: 0.0), TypeError),
        (lambda model: verify(model, None), TypeError),
        (lambda model: verify(model, lambda m: 0.0, serial=3), TypeError),
        (lambda model: verify(model, lambda m: 0.0, tolerance=float("nan")), ValueError),
    ],
)
def test_wrong_arguments_of_parallel(call: Callable[[Any], Any], kind: type) -> None:
    with cc.Mesh(dp=1):
        with pytest.raises(ag.RingtapeError) as error:
            call(nn.Linear(2, 1))
    assert isinstance(error.value, kind)


def test_a_partial_given_to_tensor_keeps_its_label() -> None:
    def program() -> list[float]:
        with cc.Mesh(dp=2):
            x = ag.tensor(np.arange(4.0), {"dp": cc.Shard(0)}, global_shape=(8,))
            total = x.sum()  # P
            assert ag.tensor(total).layout["dp"] is cc.P
            with pytest.raises(ag.LayoutError):
                ag.tensor(total, {"dp": cc.V})
            return [float(cc.all_reduce(ag.tensor(total), "dp").numpy())]

    assert cc.run(program, ranks=2) == [[12.0], [12.0]]
