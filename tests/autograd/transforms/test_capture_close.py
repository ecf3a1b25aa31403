"""`capture(bits="close")`: exp, log and tanh in compiled loops, to rounding; told by the proof where they are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from autograd.compiler import plan
from autograd.compiler.machine import is_available

needs_loops = pytest.mark.skipif(not is_available(), reason="llvmlite is not installed (extra: fast)")


def training(dtype: str) -> tuple[Any, Any]:
    key = ag.random.Key(3)
    layers = [
        nn.Linear(8, 16, dtype=dtype, key=key.fold("a")),
        nn.Tanh(),
        nn.Linear(16, 4, dtype=dtype, key=key.fold("b")),
    ]
    model = nn.Sequential(*layers)
    optimizer = optim.Adam(model.parameters(), lr=0.01)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = nn.nll_loss(nn.log_softmax(model(x), -1), y) + (nn.sigmoid(model(x)) ** 2).mean()
        tape.backward(loss)
        optimizer.step()
        return loss

    return model, step


def batches(dtype: str) -> list[tuple[Any, Any]]:
    random = np.random.default_rng(5)
    return [(random.standard_normal((6, 8)).astype(dtype), random.integers(0, 4, 6)) for _ in range(40)]


def test_a_decorator_with_options() -> None:
    """``@capture(...)`` has the options that ``capture(step, ...)`` has."""

    @ag.capture(warmup=0, verify=False, bits="close")
    def step(x: Any) -> Any:
        return ag.numpy.sum(ag.numpy.square(x))

    found = [float(step(np.arange(k, k + 3.0))) for k in range(5)]
    assert found == [5.0, 14.0, 29.0, 50.0, 77.0]
    assert step.replays == 3 and step._options == (0, False, True) and step.__name__ == "step"
    with pytest.raises(ag.OptionError, match="bits='fast' was given"):
        ag.capture(bits="fast")  # at the decorator, not at the function
    with pytest.raises(ag.ArgumentError, match="needed: a function"):
        ag.capture(bits="close")(np.ones(2))


@needs_loops
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_close(dtype: str) -> None:
    model, step = training(dtype)
    other, plain = training(dtype)
    do = ag.capture(step, bits="close")
    for x, y in batches(dtype):
        found, needed = do(x, y).item(), plain(x, y).item()
        assert found == pytest.approx(needed, rel=1e-4 if dtype == "float32" else 1e-10)
    assert do.replays > 30 and do._last is not None
    program = do._last.program.program  # type: ignore[union-attr]
    assert any(step[0] in ("exp_close", "tanh_close") for group in program.plan.groups if group.loop is not None
               for step in group.loop.steps)  # fmt: skip
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert np.allclose(p.numpy(), q.numpy(), rtol=1e-2 if dtype == "float32" else 1e-7)


@needs_loops
def test_another_function_is_found_by_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plan._CLOSE, np.tanh, "sigmoid_close")
    _, step = training("float32")
    _, plain = training("float32")
    do = ag.capture(step, bits="close")
    for x, y in batches("float32")[:10]:
        assert do(x, y).item() == plain(x, y).item()  # the rows are replayed
    assert do._last is not None and "another value" in do._last.why  # type: ignore[union-attr]


def test_what_is_refused() -> None:
    with pytest.raises(ag.errors.OptionError, match="bits='fast'"):
        ag.capture(lambda x: x, bits="fast")

    def program() -> None:
        do = ag.capture(lambda x: x * 2, bits="close")
        with cc.Mesh(dp=-1), pytest.raises(ag.errors.CaptureError, match="several ranks"):
            do(np.ones(2))

    cc.run(program, 2)
