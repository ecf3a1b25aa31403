"""The mean of a loss over sharded rows is that over the rows of all ranks, Partial until it is summed over the ranks.

A mean over some of the rows is refused, and the count that the error offers is that of the serial mean. A program is a
text with one call of a loss. The call of the fix is put in its place, and the program runs again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from collectives import P, R, Shard

_rng = numpy.random.default_rng(0)
X, W, T = _rng.standard_normal((5, 4, 3)), _rng.standard_normal((3, 6)), _rng.random((5, 4, 6))
Y = _rng.integers(0, 6, (5, 4))
SOME = numpy.where(_rng.random((5, 4)) < 0.3, -1, Y)
WEIGHT = _rng.random(6) + 0.5
NAMES = {"ag": ag, "np": np, "numpy": numpy, "cc": cc, "nn": nn, "X": X, "W": W, "T": T, "Y": Y, "SOME": SOME,
         "I": cc.I, "R": cc.R, "weight": WEIGHT}  # fmt: skip
PROGRAM = """
with cc.Mesh(dp=-1):
    w = ag.Parameter(W)
    x, t, y, some = (cc.shard(ag.tensor(a, {"dp": R}), "dp") for a in (X, T, Y, SOME))
    with ag.Tape() as tape:
        logits = x @ cc.cast(w, "dp", to=R)
        logp = nn.log_softmax(logits)
        loss = LOSS
        loss = cc.all_reduce(loss, "dp", to=I)
    tape.backward(loss)
"""
SERIAL = """
w = ag.Parameter(W)
x, t, y, some = X, T, Y, SOME
with ag.Tape() as tape:
    logits = x @ w
    logp = nn.log_softmax(logits)
    loss = LOSS
tape.backward(loss)
"""


MEANS = [
    "nn.cross_entropy(logits.reshape(-1, 6), y.reshape(-1))",
    "nn.cross_entropy((2 * logits).reshape(-1, 6), (2 * y // 2).reshape(-1), label_smoothing=0.1)",
    "nn.CrossEntropyLoss()(logits.reshape(-1, 6), y.reshape(-1))",
    "nn.nll_loss(logp.reshape(-1, 6), y.reshape(-1))",
    *(f"nn.{name}(logits, t)"
      for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits")),
    "nn.mse_loss(logits[:, 0], t[:, 0])",
    "np.mean(logits ** 2)", "(logits ** 2).mean()", "np.mean(logits, (0, 1)).sum()", "np.average(logits, 0).sum()",
    "logits.mean(0, keepdims=True).mean(2).sum()", "np.mean(logits, 2).sum()", "logits.mean(dtype='float64')",
]  # fmt: skip


class Loss(NamedTuple):
    """A call with a mean over some rows, the call with the sum, and the count that the error offers."""

    mean: str
    sum: str
    count: str


COUNT = "cc.all_reduce((some != -1).sum(), 'dp', to=R)"
OF_WEIGHTS = "cc.all_reduce(weight[some.numpy()[some.numpy() != -1]].sum(), 'dp', to=R)"
LOSSES = [
    Loss("nn.cross_entropy(logits.reshape(-1, 6), some.reshape(-1), ignore_index=-1)",
         "nn.cross_entropy(logits.reshape(-1, 6), some.reshape(-1), ignore_index=-1, reduction='sum')", COUNT),
    Loss("nn.nll_loss(logp.reshape(-1, 6), some.reshape(-1), ignore_index=-1)",
         "nn.nll_loss(logp.reshape(-1, 6), some.reshape(-1), ignore_index=-1, reduction='sum')", COUNT),
    Loss("nn.CrossEntropyLoss(weight, ignore_index=-1)(logits.reshape(-1, 6), some.reshape(-1))",
         "nn.CrossEntropyLoss(weight, ignore_index=-1, reduction='sum')(logits.reshape(-1, 6), some.reshape(-1))",
         OF_WEIGHTS),
]  # fmt: skip


def gradient(text: str) -> Any:
    code = compile(text, "program.py", "exec")

    def rank_main() -> Any:
        names = dict(NAMES)
        exec(code, names)
        return names["w"].grad.numpy()

    return cc.run(rank_main, 3)


def check(serial: str, text: str) -> None:
    """The gradient of a program on ranks is that of another one on one process."""
    names = dict(NAMES)
    exec(SERIAL.replace("LOSS", serial), names)
    for found in gradient(PROGRAM.replace("LOSS", text)):
        numpy.testing.assert_allclose(found, names["w"].grad.numpy(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("mean", MEANS)
def test_a_mean_of_sharded_rows_divides_by_the_global_count(mean: str) -> None:
    check(mean, mean)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.mean[:60])
def test_the_offered_count_is_that_of_the_serial_mean(loss: Loss) -> None:
    with pytest.raises(ag.LayoutError) as caught:
        gradient(PROGRAM.replace("LOSS", loss.mean))
    assert f" / {loss.count}   (" in str(caught.value)
    check(loss.mean, f"{loss.sum} / {loss.count}")


def test_a_row_that_is_ignored_by_default_is_refused_where_it_stands() -> None:
    """Torch's default of `ignore_index` is no label of most data, so it is looked for."""
    labels = numpy.array([0, 1, 2, 3, -100])

    def rank_main() -> Any:
        with cc.Mesh(dp=-1):
            x, t = (cc.shard(ag.tensor(a, {"dp": R}), "dp") for a in (X[:, 0] @ W, labels))
            smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
            for loss in (nn.cross_entropy, nn.CrossEntropyLoss(), nn.NLLLoss(), smoothed):
                if not (t.local == -100).any():
                    assert loss(x, t).layout["dp"] is P
                    continue
                with pytest.raises(ag.LayoutError, match=r"cc.all_reduce\(\(t != -100\).sum\(\), 'dp', to=R\)"):
                    loss(x, t)

    cc.run(rank_main, 3)


def test_a_mean_needs_agreed_extents_and_its_mean_over_the_ranks_is_refused() -> None:
    def rank_main() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            rows = X[mesh.axis("dp").rank :, 0]
            with pytest.raises(ag.LayoutError, match=r"fix: cc.from_local\(x, \{'dp': Shard\(0\)\}\)"):
                ag.tensor(rows, {"dp": Shard(0)}).mean()
            mean = cc.from_local(rows, {"dp": Shard(0)}).mean()
            with pytest.raises(ag.LayoutError, match="all_reduce"):
                cc.mean(mean, "dp")
            with pytest.raises(ag.LayoutError):
                mean.item()
            return cc.all_reduce(mean, "dp", to=R).item()

    wanted = numpy.mean([row.mean() for first in range(3) for row in X[first:, 0]])
    assert cc.run(rank_main, 3) == pytest.approx([wanted] * 3, rel=1e-12)


def test_the_mean_of_integers_and_of_small_numbers_has_numpys_dtype() -> None:
    with cc.Mesh(dp=1):
        for dtype in ("int64", "bool", "float32", "float16", "complex64"):
            x = numpy.ones((4, 2), dtype)
            for axis in (None, 0):
                found = cc.from_local(x, {"dp": Shard(0)}).mean(axis)
                assert found.layout["dp"] is P and found.dtype == x.mean(axis).dtype, dtype


def test_ignored_rows_of_copies_have_a_gradient() -> None:
    """The cotangent of a loss of Replicated logits is Partial."""

    def rank_main() -> Any:
        with cc.Mesh(dp=-1):
            w = ag.Parameter(W)
            with ag.Tape() as tape:
                logits = ag.tensor(X[:, 0], {"dp": R}) @ cc.cast(w, "dp", to=R)
                loss = nn.cross_entropy(logits, ag.constant(SOME[:, 0]), ignore_index=-1, reduction="sum")
                loss = cc.all_reduce(cc.cast(loss, "dp", to=P), "dp", to=cc.I)
            tape.backward(loss)
            return w.grad.numpy()

    wanted = ag.grad(lambda w: nn.cross_entropy(X[:, 0] @ w, SOME[:, 0], ignore_index=-1, reduction="sum"))(W)
    for found in cc.run(rank_main, 3):
        numpy.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-14)


def test_errors_of_ported_programs() -> None:
    """Their fixes hold: an addend is read under `no_grad`, a forward pass needs a tape, a weight is transposed."""
    w = ag.Parameter(W)
    with pytest.raises(ag.TapeError, match=r"fix: with ag.Tape\(\) as tape: around the forward pass"):
        (w * 2.0).sum().backward()
    with pytest.raises(ag.ShapeError, match=r"of shape \(3, 6\): the transpose. Weights of nn.Linear"):
        w.data = W.T
    with cc.Mesh(dp=1), ag.Tape():
        loss = cc.shard(ag.tensor(X, {"dp": R}), "dp").sum() * cc.cast(w, "dp", to=R).sum()
        with pytest.raises(ag.TapeError) as caught:
            loss.local  # noqa: B018 - it raises
        assert "fix: with ag.no_grad(): around its use, if" in str(caught.value)
        with ag.no_grad():
            assert loss.local == pytest.approx(X.sum() * W.sum())
