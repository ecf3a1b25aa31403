"""The mean of a loss over sharded rows is refused, and the count that the error offers is that of the serial mean.

A program is a text with one call of a loss. The call of the fix is put in its place, and the program runs again.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn

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


class Loss(NamedTuple):
    """A call with a mean, the call with the sum, and the count that the error offers."""

    mean: str
    sum: str
    count: str
    note: str = ""


ROWS = "(logits.global_shape[0] * logits.global_shape[1])"
ALL = "(logits.global_shape[0] * logits.global_shape[1] * logits.global_shape[2])"
COUNT = "cc.all_reduce((some != -1).sum(), 'dp', to=R)"
OF_WEIGHTS = "cc.all_reduce(weight[some.numpy()[some.numpy() != -1]].sum(), 'dp', to=R)"
LOSSES = [
    Loss("nn.cross_entropy(logits.reshape(-1, 6), y.reshape(-1), 'mean')",
         "nn.cross_entropy(logits.reshape(-1, 6), y.reshape(-1), 'sum')", ROWS, "here 20"),
    Loss("nn.cross_entropy((2 * logits).reshape(-1, 6), y.reshape(-1), 'mean')",
         "nn.cross_entropy((2 * logits).reshape(-1, 6), y.reshape(-1), 'sum')",
         "(y.global_shape[0] * y.global_shape[1])", "here 20"),
    Loss("nn.cross_entropy((2 * logits).reshape(-1, 6), (2 * y // 2).reshape(-1), 'mean')",
         "nn.cross_entropy((2 * logits).reshape(-1, 6), y.reshape(-1), 'sum')",
         "n", "n: the number of the losses of all ranks, here 20"),
    Loss("nn.cross_entropy(logits.reshape(-1, 6), some.reshape(-1), 'mean', ignore_index=-1)",
         "nn.cross_entropy(logits.reshape(-1, 6), some.reshape(-1), 'sum', ignore_index=-1)", COUNT),
    Loss("nn.nll_loss(logp.reshape(-1, 6), some.reshape(-1), ignore_index=-1)",
         "nn.nll_loss(logp.reshape(-1, 6), some.reshape(-1), ignore_index=-1, reduction='sum')", COUNT),
    Loss("nn.CrossEntropyLoss(weight, -1)(logits.reshape(-1, 6), some.reshape(-1))",
         "nn.CrossEntropyLoss(weight, -1, 'sum')(logits.reshape(-1, 6), some.reshape(-1))", OF_WEIGHTS),
    *(Loss(f"nn.{name}(logits, t)", f"nn.{name}(logits, t, reduction='sum')", ALL, "here 120")
      for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits")),
    Loss("nn.mse_loss(logits[:, 0], t[:, 0])", "nn.mse_loss(logits[:, 0], t[:, 0], reduction='sum')",
         "(input.global_shape[0] * input.global_shape[1])", "here 30"),
    Loss("np.mean(logits ** 2)", "(operand := logits ** 2).sum()",
         "(operand.global_shape[0] * operand.global_shape[1] * operand.global_shape[2])"),
    Loss("np.mean(logits, (0, 1)).sum()", "logits.sum((0, 1)).sum()",
         "(logits.global_shape[0] * logits.global_shape[1])"),
]  # fmt: skip


def gradient(text: str) -> Any:
    code = compile(text, "program.py", "exec")

    def rank_main() -> Any:
        names = dict(NAMES)
        exec(code, names)
        return names["w"].grad.numpy()

    return cc.run(rank_main, 3)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.mean[:60])
def test_the_offered_count_is_that_of_the_serial_mean(loss: Loss) -> None:
    with pytest.raises(ag.LayoutError) as caught:
        gradient(PROGRAM.replace("LOSS", loss.mean))
    text = str(caught.value)
    assert f" / {loss.count}   (" in text and loss.note in text, text
    count = loss.count.replace("input", "logits[:, 0]") if loss.count != "n" else re.findall(r"here (\d+)", text)[0]
    names = dict(NAMES)
    exec(SERIAL.replace("LOSS", loss.mean), names)
    for found in gradient(PROGRAM.replace("LOSS", f"{loss.sum} / {count}")):
        numpy.testing.assert_allclose(found, names["w"].grad.numpy(), rtol=1e-10, atol=1e-14)
