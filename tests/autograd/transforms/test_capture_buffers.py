"""Captured steps of batch norm: the running averages are part of the program, and are updated after all decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import nn, optim

from .test_capture import bits

Loss = Callable[[Any, Any, Any], Any]


def _once(norm: Any, x: Any, y: Any) -> Any:
    return ((norm(x) - y) ** 2).mean()


def _twice(norm: Any, x: Any, y: Any) -> Any:
    return ((norm(x) + norm(x * 2.0) - y) ** 2).mean()


def _read_after(norm: Any, x: Any, y: Any) -> Any:
    z = norm(x)
    return ((z - y) ** 2).mean() + (ag.tensor(norm.running_mean) * 3.0).sum()


def _view_after(norm: Any, x: Any, y: Any) -> Any:
    z = norm(x)
    return ((z - y) ** 2).mean() + (ag.tensor(norm.running_mean[::2]) * 3.0).sum()


def _evaluated_after(norm: Any, x: Any, y: Any) -> Any:
    z = norm(x)
    norm.eval()
    w = norm(x)
    norm.train()
    return ((z - y) ** 2).mean() + (w * w).mean()


def _decides_after(norm: Any, x: Any, y: Any) -> Any:
    z = norm(x)
    labels = (y[:, 0] > 0).astype("int64")
    return nn.cross_entropy(z, np.where(labels > 0, 1, 0))


LOSSES: dict[str, Loss] = {
    "once": _once, "twice": _twice, "read after": _read_after, "view after": _view_after,
    "evaluated after": _evaluated_after, "decides after": _decides_after,
}  # fmt: skip
NORMS: dict[str, Callable[[], Any]] = {
    "norm": lambda: nn.BatchNorm1d(4),
    "plain mean": lambda: nn.BatchNorm1d(4, momentum=None),
    "without weights": lambda: nn.BatchNorm1d(4, affine=False),
    "without averages": lambda: nn.BatchNorm1d(4, track_running_stats=False),
}


@pytest.mark.parametrize("compiled", ["0", "1"])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("name", LOSSES)
def test_bits(name: str, kind: str, compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "without averages" and name in ("read after", "view after"):
        pytest.skip("there is none to read")
    monkeypatch.setenv("RINGTAPE_COMPILED", compiled)

    def run(captures: bool) -> Any:
        norm, w = NORMS[kind](), ag.Parameter(numpy.linspace(-1, 1, 12).reshape(3, 4), name="w")
        optimizer = optim.SGD([w, *norm.parameters()], lr=0.1, momentum=0.9)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = LOSSES[name](norm, ag.tensor(x) @ w, ag.tensor(y))
            tape.backward(loss)
            optimizer.step()
            return loss

        do = ag.capture(step) if captures else step
        found = []
        for i in range(14):
            random = numpy.random.default_rng(i)
            found.append(bits(do(random.standard_normal((6, 3)), random.standard_normal((6, 4)))))
            found.append([bits(x) for x in (norm.running_mean, norm.running_var, norm.num_batches_tracked)
                          if x is not None])  # fmt: skip
        if captures:
            assert do.replays >= 8
            assert do._last.program is not None, do._last.why  # type: ignore[union-attr]
        return found, bits(w)

    assert run(captures=True) == run(captures=False)


def test_running_averages_are_no_call_of_python() -> None:
    norm = nn.BatchNorm1d(4)
    do = ag.capture(lambda x: (norm(ag.tensor(x)) ** 2).sum())
    for i in range(8):
        do(numpy.random.default_rng(i).standard_normal((6, 4)))
    assert do.replays == 4
    assert "running averages" not in str(do) and "stays" not in str(do)


def test_a_decision_may_follow_the_update() -> None:
    """As that of the adjoint of max pooling, whether there is a NaN; a replay that finds one leaves the averages."""
    model = nn.Sequential(nn.BatchNorm2d(2), nn.MaxPool2d(2))
    w = ag.Parameter(numpy.ones((1, 2, 4, 4)))
    optimizer = optim.SGD([w, *model.parameters()], lr=0.0)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = (model(ag.tensor(x) * w) ** 2).sum()
        tape.backward(loss)
        return loss

    do = ag.capture(step)
    for i in range(10):
        do(numpy.random.default_rng(i).standard_normal((3, 2, 4, 4)))
    assert do.replays == 6 and "stays" not in str(do)
    other = numpy.random.default_rng(0).standard_normal((3, 2, 4, 4))
    other[0, 0, 0, 0] = numpy.nan
    before = [x.copy() for x in (model[0].running_mean, model[0].num_batches_tracked)]
    found = bits(do(other))
    after = [x.copy() for x in (model[0].running_mean, model[0].num_batches_tracked)]
    for x, own in zip((model[0].running_mean, model[0].num_batches_tracked), before, strict=True):
        x[...] = own
    assert found == bits(step(other))
    assert [bits(x) for x in after] == [bits(x) for x in (model[0].running_mean, model[0].num_batches_tracked)]
    assert after[1] == before[1] + 1
