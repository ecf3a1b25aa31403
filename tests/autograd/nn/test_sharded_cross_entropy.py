"""Cross-entropy of rows that are divided among the ranks, with labels that are divided too."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn
from collectives import I, R, Shard

ROWS, LABELS = numpy.random.default_rng(0).normal(size=(7, 2)), numpy.array([0, 1, -100, 2, 1, -100, 0])
W = numpy.random.default_rng(1).normal(size=(2, 3))


@pytest.mark.parametrize(
    "options", [{"reduction": "sum"}, {"reduction": "none"}, {"reduction": "none", "label_smoothing": 0.1}]
)
def test_ignored_labels_of_a_sharded_value(options: dict[str, Any]) -> None:
    def loss_of(w: Any, x: Any, y: Any) -> Any:
        return nn.cross_entropy(x @ w, y, ignore_index=-100, **options).sum() / (LABELS != -100).sum()

    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            part = numpy.array_split(numpy.arange(7), 3)[int(mesh.axis("dp").rank)]
            x, y = (cc.from_local(a[part], {"dp": Shard(0)}) for a in (ROWS, LABELS))
            w = ag.Parameter(W)
            with ag.Tape() as tape:
                loss = cc.all_reduce(loss_of(cc.cast(w, "dp", to=R), x, y), "dp", to=I)
            tape.backward(loss)
            return w.grad.numpy()

    expected = ag.grad(lambda w: loss_of(w, ROWS, LABELS))(W)
    for found in cc.run(program, 3):
        numpy.testing.assert_allclose(found, expected, rtol=1e-12)
