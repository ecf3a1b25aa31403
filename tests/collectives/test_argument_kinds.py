"""Arguments of a wrong kind: each call raises a typed error that shows what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from autograd.errors import RingtapeError
from autograd.testing import GradientMismatch, check_grads
from collectives import I, R, V

X = numpy.ones((2, 2))


def total(x: Any, axis: Any) -> Any:
    return cc.all_reduce(x, axis, to=R)


def no_loss_here() -> None:
    with ag.Tape() as tape:
        loss = 0.0
    tape.backward(loss)


CALLS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "a shift for pairs": (lambda: cc.permute(X, "dp", 1), ("[(r, (r + 1) % n) for r in range(n)]", "n = 3")),
    "a shift down": (lambda: cc.permute(X, "dp", -2), ("(r - 2) % n",)),
    "a mapping for pairs": (lambda: cc.permute(X, "dp", {0: 1}), ("pairs.items()",)),
    "a misspelt axis": (lambda: cc.all_reduce(X, "pd"), ("'pd' was given", "'dp'", "needed", "  at ")),
    "no axis": (lambda: cc.all_reduce(X), ("axis None", "one of the names 'dp'")),
    "an unknown option": (lambda: cc.all_gather(X, "dp", root=1), ("root", "all_gather(x, axis")),
    "a label for the axis": (lambda: cc.all_reduce(X, I), ("'dp'", "needed")),
    "exchanged operand and axis": (lambda: cc.all_reduce("dp", X), ("needed", "'dp'")),
    "rows of different lengths": (lambda: cc.all_reduce([[1.0], [1.0, 2.0]], "dp"), ("equal lengths", "  at ")),
    "a name for a dimension": (lambda: cc.all_gather(X, "dp", dim="rows"), ("dim='rows'", "from -2 to 1")),
    "one count": (lambda: cc.all_to_all(X, "dp", 0, 0, counts=2), ("counts=2", "one for each rank")),
    "a rank that is not there": (lambda: cc.broadcast(X, "dp", 3), ("root=3", "0 to 2", "needed")),
    "a result for a program": (lambda: cc.run(no_loss(), 2), ("run(None)", "cc.run(program, ranks=4)")),
    "a label without a tuple": (lambda: cc.Collective("shift (kinds)", takes=V), ("takes=(V,)",)),
    "a collective on an axis": (
        lambda: cc.Collective("twice (kinds)", takes=(V,), gives=V)(ag.tensor(X), "dp"), ("cc.apply(", "cc.call('dp')"),
    ),
    "a function without labels": (lambda: cc.testing.check(total), ("cc.testing.check(total, takes=[V])",)),
    "a number to check": (lambda: cc.testing.check(3), ("cc.testing.check(collective)", "f(x, axis)")),
    "a number for a loss": (no_loss_here, ("float was given", "cc.broadcast(loss, axis, root, to=I)", "  at ")),
    "elements of a parameter": (
        lambda: ag.Parameter(X).__setitem__(..., 1.0), ("w.data = w.numpy() - lr * w.grad.numpy()",),
    ),
    "an array minus a Tensor in place": (
        lambda: numpy.subtract(X, ag.Parameter(X), out=X), ("w.data = w.numpy() - lr * w.grad.numpy()", "a = a - x"),
    ),
    "sequences of logits": (
        lambda: nn.cross_entropy(numpy.ones((2, 3, 4)), numpy.ones((2, 3), int)), ("logits.reshape(-1, 4)", "  at "),
    ),
    "two axes of three": (lambda: np.transpose(numpy.ones((2, 3, 4)), (1, 2)), ("x.swapaxes(1, 2)", "  at ")),
}  # fmt: skip


def no_loss() -> None:
    """A program that was called in place of being given."""


def test_a_wrong_kind_of_argument_is_told() -> None:
    def rank_main() -> list[str]:
        with cc.Mesh(dp=-1):
            texts = []
            for call, _ in CALLS.values():
                with pytest.raises(RingtapeError) as caught:
                    call()
                texts.append(str(caught.value))
        return texts

    for name, text in zip(CALLS, cc.run(rank_main, 3)[1], strict=True):
        for words in CALLS[name][1]:
            assert words in text, f"{name}: {text}"


def test_without_a_mesh_the_line_is_named() -> None:
    with pytest.raises(ag.MeshError, match=r"(?s)with cc.Mesh\(dp=-1\).*  at test_argument_kinds"):
        cc.all_reduce(X, "dp")


def test_a_function_of_collectives_can_be_checked() -> None:
    assert cc.testing.check(total, ranks=[1, 3], takes=[V]).ok

    def wrong(x: Any, axis: Any) -> Any:  # an effect that no cotangent goes back through
        return cc.all_reduce(ag.stop_gradient(x), axis, to=R) + 0.0 * cc.all_reduce(x, axis, to=R)

    assert not cc.testing.check(wrong, ranks=[2], takes=[V]).ok


# -- check_grads under a mesh ------------------------------------------------------------------------------------------
def losses(w: Any, synchronized: bool) -> Any:
    x = cc.shard(ag.tensor(numpy.arange(6.0).reshape(3, 2), {"dp": R}), "dp")
    entered = cc.cast(w, "dp", to=R)
    if not synchronized:  # the gradient of the other ranks' rows is lost
        entered = cc.cast(ag.stop_gradient(entered), "dp", to=R) + 0.0 * entered
    return cc.all_reduce(np.tanh(x @ entered).sum(), "dp", to=I)


def test_check_grads_of_a_distributed_loss() -> None:
    def rank_main() -> str:
        with cc.Mesh(dp=-1):
            w = ag.Parameter([0.5, -0.2])
            check_grads(lambda w: losses(w, True), w)
            with pytest.raises(GradientMismatch):
                check_grads(lambda w: losses(w, False), w)
            with pytest.raises(ag.LayoutError) as caught:
                check_grads(lambda w: losses(w, True), w.numpy())
        return str(caught.value)

    for text in cc.run(rank_main, 3):
        assert "check_grads(f, ag.Parameter(w), ...)" in text


def test_transforms_say_first_that_an_argument_is_a_plain_array() -> None:
    def rank_main() -> str:
        with cc.Mesh(dp=-1), pytest.raises(ag.LayoutError) as caught:
            ag.grad(lambda w: losses(w, True))(numpy.ones(2))
        return str(caught.value)

    text = cc.run(rank_main, 2)[0]
    assert "argument 0 of the function given to ag.grad is a plain array" in text.splitlines()[1]
    assert "fix: ag.tensor(argument, layout={'dp': I})" in text.splitlines()[2]


