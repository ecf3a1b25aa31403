"""The proof of a captured step's program: what it changes for a moment, and what other threads see of it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import nn, optim
from autograd.compiler import trace
from autograd.compiler.program import Program
from autograd.kernels.compiled import stands_for
from autograd.transforms import proving

from .test_capture import bits


def batches(count: int) -> list[Any]:
    return [numpy.random.default_rng(i).standard_normal((8, 16)).astype("float32") for i in range(count)]


def network() -> nn.Module:
    ag.random.seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


@contextmanager
def another_thread() -> Iterator[None]:
    end, begun = threading.Event(), threading.Event()

    def work() -> None:  # code of the program, which may read its arrays
        begun.set()
        end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()


def moved(monkeypatch: pytest.MonkeyPatch, trains: bool) -> list[bool]:
    """Of each parameter, whether the proof gives it other values for a moment."""
    model = network()
    found = [False] * len(list(model.parameters()))
    optimizer = optim.SGD(model.parameters(), 0.1)
    own = proving._move

    def noted(*args: Any) -> None:
        before = bits(list(model.parameters()))
        own(*args)
        now = bits(list(model.parameters()))
        found[:] = [was or a != b for was, a, b in zip(found, before, now, strict=True)]

    monkeypatch.setattr(proving, "_move", noted)

    def step(x: Any) -> Any:
        if not trains:
            return model(ag.tensor(x))
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = (model(ag.tensor(x)) ** 2).mean()
        tape.backward(loss)
        optimizer.step()
        return loss

    captured = ag.capture(step)
    for x in batches(6):
        captured(x)
    assert captured._last is not None
    assert captured._last.why == ""  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("trains", [False, True])
def test_the_proof_gives_parameters_other_values(monkeypatch: pytest.MonkeyPatch, trains: bool) -> None:
    assert moved(monkeypatch, trains) == [True] * 4


@pytest.mark.parametrize("trains", [False, True])
def test_parameters_stay_while_there_are_other_threads(
    monkeypatch: pytest.MonkeyPatch, trains: bool
) -> None:
    with another_thread():
        assert moved(monkeypatch, trains) == [False] * 4


def test_threads_that_share_a_model_get_its_results_while_others_record() -> None:
    model, xs = network(), batches(24)
    needed = [bits(model(ag.tensor(x))) for x in xs]
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(i for i, x in enumerate(xs) if bits(predict(x)) != needed[i])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(3):
            predict = ag.capture(lambda x: model(ag.tensor(x)))
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_a_thread_does_not_see_that_another_one_traces() -> None:
    found: list[Any] = []
    with trace.tracing(trace.Trace()):
        thread = threading.Thread(target=lambda: found.append(list(stands_for.makers)))
        thread.start()
        thread.join()
        assert len(stands_for.makers) == 1
    assert found == [[]]
    assert not stands_for.makers


def test_models_of_threads_train_at_the_same_time() -> None:
    def train(captures: bool, seed: int) -> Any:
        model = network()
        optimizer = optim.Adam(model.parameters(), 0.01)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = (np.tanh(model(ag.tensor(x))) ** 2).mean()
            tape.backward(loss)
            optimizer.step()
            return loss

        do = ag.capture(step) if captures else step
        random = numpy.random.default_rng(seed)
        losses = [bits(do(random.standard_normal((8, 16)).astype("float32"))) for _ in range(12)]
        return losses, bits(list(model.parameters()))

    needed = [train(False, seed) for seed in range(4)]
    found: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda seed=seed: found.update({seed: train(True, seed)})) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(4)] == needed


OPTIMIZERS = {
    "SGD": lambda ps: optim.SGD(ps, 0.1), "momentum": lambda ps: optim.SGD(ps, 0.1, 0.9),
    "Nesterov": lambda ps: optim.SGD(ps, 0.1, 0.9, nesterov=True), "Adam": lambda ps: optim.Adam(ps, 0.01),
    "AdamW": lambda ps: optim.AdamW(ps, 0.01), "RMSprop": lambda ps: optim.RMSprop(ps, 0.01),
    "centered RMSprop": lambda ps: optim.RMSprop(ps, 0.01, momentum=0.5, centered=True),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_replay_is_a_run_of_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a comparison with the step, whose optimizer might put its state into other arrays."""
    runs: list[int] = []
    own = Program.run_lines
    monkeypatch.setattr(Program, "run_lines", lambda self, name: [f"{name(runs)}.append(1)", *own(self, name)])
    model = network()
    optimizer = OPTIMIZERS[name](model.parameters())

    @ag.capture
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = (model(ag.tensor(x)) ** 2).mean()
        tape.backward(loss)
        optimizer.step()
        return loss

    xs = batches(24)
    for x in xs[:4]:
        step(x)
    before = len(runs)
    for x in xs[4:]:
        step(x)
    assert step.replays == 20
    assert len(runs) - before == 20


def test_an_argument_that_the_step_writes_to_is_read_at_its_time() -> None:
    def run(captures: bool) -> Any:
        p = ag.Parameter(numpy.linspace(0, 1, 32, dtype="float32").reshape(4, 8))
        optimizer = optim.SGD([p], 0.1)

        def step(x: Any) -> Any:
            found = []
            for _ in range(2):
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    y = ag.tensor(x) * 2.0
                    loss = (y * p).sum()
                tape.backward(loss)
                optimizer.step()
                found.append(y * 1.0)
            return found

        do = ag.capture(step) if captures else step
        given = [p.numpy() if i > 5 else numpy.full((4, 8), i, "float32") for i in range(10)]
        return [bits(do(x)) for x in given], bits(p)

    assert run(captures=True) == run(captures=False)


def test_an_error_in_the_program_leaves_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "run_lines", lambda *_: ["raise ValueError('of the program')"])
    model = network()
    predict = ag.capture(lambda x: model(ag.tensor(x)))
    xs = batches(8)
    assert [bits(predict(x)) for x in xs] == [bits(model(ag.tensor(x))) for x in xs]
    assert predict.replays == 4
    assert predict._last is not None
    assert predict._last.why == "ValueError: of the program"  # type: ignore[union-attr]
