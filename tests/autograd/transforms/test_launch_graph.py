"""Captured steps: a replay uses new inputs and new numbers, runs nothing on the host, and equals the step itself."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy
import pytest

import autograd as ag
from autograd import nn, optim
from autograd.arrays import cuda, runtime_of, to_host
from autograd.arrays.capture import Capture
from autograd.errors import ArgumentError, CaptureError, TapeError
from autograd.optim import schedules
from autograd.transforms import launch_graph
from autograd.transforms.launch_graph import LaunchPlan

from ..arrays.devices import DEVICES, GPU

pytestmark = pytest.mark.usefixtures("compiler_of_kernels")
OPTIMIZERS: dict[str, Any] = {
    "AdamW": lambda ps: optim.AdamW(ps, schedules.exponential_lr(0.05, 0.7)),
    "groups": lambda ps: optim.Adam([{"params": ps[:1], "lr": schedules.step_lr(0.1, 2)}, {"params": ps[1:]}], 0.02),
    "SGD": lambda ps: optim.SGD(ps, schedules.exponential_lr(0.1, 0.9), 0.9, dampening=0.2),
}


@pytest.fixture(params=DEVICES)
def there(request: pytest.FixtureRequest) -> Any:
    return request.param


def batches(steps: int) -> list[tuple[Any, Any]]:
    random = numpy.random.default_rng(0)
    return [(random.standard_normal((5, 4)).astype("float32"), random.integers(0, 3, 5)) for _ in range(steps)]


def train(
    name: str, there: Any, steps: int, clip: bool, wrap: Any = ag.capture
) -> tuple[list[float], list[Any], Any, int]:
    """The losses and parameters after some steps, the optimizer, and how often the step ran on the host."""
    ag.random.seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 3))
    for p in model.parameters():
        p.array = there.move(p.numpy())
    optimizer = OPTIMIZERS[name](model.parameters())
    runs = (ctypes.c_long * 1)()  # not a list, which a captured step would refuse to append to

    def step(x: Any, y: Any) -> Any:
        runs[0] += 1
        with ag.Tape() as tape:
            loss = nn.cross_entropy(model(x), y, reduction="sum") * (1 / 5)
        tape.backward(loss)
        if clip:
            optim.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    do = wrap(step)
    losses = []
    for k, (x, y) in enumerate(batches(steps)):
        if k == 5:
            optimizer.lr = 0.3  # ends the schedule
        losses.append(float(to_host(do(there.move(x), there.move(y)).array)))
    return losses, [there.values(p) for p in model.parameters()], optimizer, int(runs[0])


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_replays_are_steps(name: str, clip: bool, there: Any) -> None:
    losses, parameters, optimizer, runs = train(name, there, 7, clip)
    needed, others, other, all_runs = train(name, there, 7, clip, lambda step: step)
    assert runs == 4 and all_runs == 7
    numpy.testing.assert_allclose(losses, needed, rtol=1e-5)
    for x, y in zip(parameters, others, strict=True):
        numpy.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)
    assert optimizer.numbers() == other.numbers() and getattr(optimizer, "counts", 0) == getattr(other, "counts", 0)


FAULTS: dict[str, Any] = {
    "the numbers of the captured step for all": (Capture, "write", lambda capture: None),
    "no step is counted": (Capture, "advance", lambda capture: None),
    "the arguments of the captured step for all": (LaunchPlan, "run", lambda plan, *arrays: plan.replay()),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(fault: str) -> None:
    with mock.patch.object(*FAULTS[fault]), pytest.raises(AssertionError):
        test_replays_are_steps("AdamW", False, DEVICES[0].values[0])


@pytest.mark.parametrize("there", GPU)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_threads_capture_on_devices_of_their_own(count: int, there: Any) -> None:
    if (found := cuda.library("this test").cuda.runtime.getDeviceCount()) < count:
        pytest.skip(f"there are {found} GPUs; needed: {count}")

    def program(number: int) -> tuple[list[float], list[Any], Any, int]:
        ag.use_device(f"cuda:{number}")
        return train("AdamW", there, 7, False)

    needed = train("AdamW", there, 7, False, lambda step: step)[:2]
    with ThreadPoolExecutor(count) as threads:
        for losses, parameters, _, runs in threads.map(program, range(count)):
            assert runs == 4
            numpy.testing.assert_allclose(losses, needed[0], rtol=1e-5)
            for a, b in zip(parameters, needed[1], strict=True):
                numpy.testing.assert_allclose(a, b, rtol=1e-5)


def captured(there: Any, step: Any, *args: Any) -> Any:
    """The error at the capture of a step."""
    do = ag.capture(step, warmup=0)
    do(*args)  # as it is
    with pytest.raises(CaptureError) as error:
        do(*args)
    assert not do.is_captured
    there.values(there.move(numpy.ones(1)) * 2.0)  # the device is usable again
    return str(error.value)


def test_what_a_captured_step_may_not_do(there: Any) -> None:
    x, w = there.move(numpy.ones((3, 4))), ag.Parameter(there.move(numpy.ones((4,))))
    assert "values of the device were read" in captured(there, lambda x: (ag.tensor(x).sum()).item(), x)
    assert "values of the device were read" in captured(there, lambda x: bool(ag.tensor(x).sum() > 1), x)
    assert "a host array was copied" in captured(there, lambda x: x + ag.arrays.move(numpy.ones(4), x), x)
    dropout, norm = nn.Dropout(0.5), nn.BatchNorm1d(4)
    norm.weight.array, norm.bias.array = there.move(numpy.ones(4)), there.move(numpy.ones(4))
    norm.running_mean, norm.running_var = there.move(numpy.ones(4)), there.move(numpy.ones(4))
    assert "next_key('dropout')" in captured(there, lambda x: dropout(ag.tensor(x)), x)
    assert "running averages" in captured(there, lambda x: norm(ag.tensor(x)), x)

    def step(x: Any, make: Any) -> None:
        with ag.Tape() as tape:
            loss = (x @ w).sum()
        tape.backward(loss)
        make([w]).step()

    assert "RMSprop.step() updated" in captured(there, lambda x: step(x, optim.RMSprop), x)
    assert "tables of an optimizer's state" in captured(there, lambda x: step(x, optim.Adam), x)
    assert "clip_grad_norm_ reads the norm" in captured(
        there, lambda x: step(x, lambda ps: (optim.clip_grad_norm_(ps, 1.0, numpy.inf), optim.SGD(ps, 0.1))[1]), x
    )


def test_arguments(there: Any) -> None:
    x = there.move(numpy.arange(4.0))
    double = ag.capture(lambda a, n, b: {"sum": a["x"] * n + b}, warmup=0)
    for n in (2.0, 3.0):  # numbers are constants of a record
        for scale in (1.0, 2.0, 3.0, 4.0):
            found = double({"x": x * scale}, n, x)
            assert there.values(found["sum"]).tolist() == [0.0, n * scale + 1, 2 * n * scale + 2, 3 * n * scale + 3]
    assert double.replays == 4
    with pytest.raises(TapeError, match="inside a tape's block"), ag.Tape():
        double({"x": x[:3]}, 2.0, x[:3])


def test_the_host_does_not_wait_for_a_replay(there: Any) -> None:
    """Nothing but the launch of a captured step reads or writes host memory."""
    w = ag.Parameter(there.move(numpy.zeros(4)))
    optimizer = optim.AdamW([w], 0.1)

    def step(x: Any) -> Any:
        with ag.Tape() as tape:
            loss = ((w - x) ** 2).sum()
        tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    do = ag.capture(step)
    xs = [there.move(numpy.full(4, float(k))) for k in range(6)]
    for x in xs[:4]:
        do(x)
    with there.without_crossings():
        losses = [do(x) for x in xs[4:]]
    assert do.replays == 2 and there.values(losses[0]) != there.values(losses[1])
    runtime: Any = runtime_of(type(w.array))
    runtime.current_stream().synchronize()
    needed = ag.Parameter(numpy.zeros(4))
    same = optim.AdamW([needed], 0.1)
    for k in range(6):
        needed.grad = 2 * (needed.numpy() - k)
        same.step()
    numpy.testing.assert_allclose(there.values(w), needed.numpy(), rtol=1e-10)


# -- the contract of `capture` -----------------------------------------------------------------------------------------
class Training:
    """A model on a device, and a step."""

    def __init__(self, there: Any, wrap: Any):
        ag.random.seed(0)
        self.there = there
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
        for p in self.model.parameters():
            p.array = there.move(p.numpy())
        self.model.parameters()[0].requires_grad = False
        self.optimizer = optim.Adam(self.model.parameters()[1:], 0.01)
        self.do, self.results = wrap(self.step), []

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = nn.cross_entropy(self.model(x), y, reduction="sum") / len(y)
        tape.backward(loss)
        self.optimizer.step()
        return {"loss": loss}

    def run(self, calls: int, rows: int = 5) -> None:
        random = numpy.random.default_rng(rows)
        for _ in range(calls):
            x, y = random.standard_normal((rows, 4)).astype("float32"), random.integers(0, 3, rows)
            self.results.append(self.do(self.there.move(x), self.there.move(y)))

    def end(self) -> list[Any]:
        parameters = self.model.parameters()
        values = [self.there.values(x["loss"]) for x in self.results]
        return [*values, *map(self.there.values, parameters), *(self.there.values(p.grad) for p in parameters[1:])]


def assign_parameter(t: Training) -> None:
    p = t.model.parameters()[0]
    p.data = p.array * 0.5


def replace_layer(t: Training) -> None:
    t.model.append(nn.ReLU())


CHANGES: dict[str, Any] = {
    "nothing": lambda t: t.run(0),
    "rows": lambda t: t.run(6, rows=3),
    "the state": lambda t: t.optimizer.load_state_dict(t.optimizer.state_dict()),
    "a parameter": assign_parameter,
    "the rate": lambda t: setattr(t.optimizer, "lr", 0.05),
    "a layer": replace_layer,
    "gradients": lambda t: t.optimizer.zero_grad(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_on_a_device_is_captured_by_the_contract_of_capture(change: str, there: Any) -> None:
    found = []
    for wrap in (lambda step: step, ag.capture):
        t = Training(there, wrap)
        t.run(6)
        CHANGES[change](t)
        t.run(6)
        found.append(t.end())
    assert t.do.replays >= 4
    for x, y in zip(*found, strict=True):
        numpy.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)


REPLAY = LaunchPlan.replay


def replay_without_copies(plan: LaunchPlan) -> list[Any]:
    with mock.patch.object(launch_graph, "_copied", list):
        return REPLAY(plan)


CONTRACT_FAULTS: dict[str, tuple[Any, str, Any, str]] = {
    "results are not copied": (LaunchPlan, "replay", replay_without_copies, "nothing"),
    "new arrays are not seen": (launch_graph.Guard, "has_same_arrays", lambda guard: True, "a parameter"),
    "state is not seen": (launch_graph.Reach, "holds", lambda reach: True, "a layer"),
}


@pytest.mark.parametrize("fault", CONTRACT_FAULTS)
def test_faults_in_the_contract_are_seen(fault: str) -> None:
    *where, change = CONTRACT_FAULTS[fault]
    with mock.patch.object(*where), pytest.raises((AssertionError, CaptureError)):
        test_a_step_on_a_device_is_captured_by_the_contract_of_capture(change, DEVICES[0].values[0])


def test_a_step_whose_parameters_alone_are_on_a_device(there: Any) -> None:
    w = ag.Parameter(there.move(numpy.ones(4)))
    scale = there.move(numpy.full(4, 0.5))

    @ag.capture
    def step() -> Any:
        with ag.Tape() as tape:
            loss = (w * scale).sum()
        (ct,) = tape.backward(loss, wanted=[w]) or ()
        return loss, ag.tensor(ct)

    for k in range(7):
        loss, ct = step()
        assert there.values(loss) == 2 + k / 2 and there.values(ct).tolist() == there.values(scale).tolist()
        scale += 0.125
    assert step.replays == 2


def test_what_capture_refuses_on_a_device(there: Any) -> None:
    x, w = there.move(numpy.ones(4)), ag.Parameter(there.move(numpy.ones(4)))

    def after_warmup(step: Any, *args: Any) -> None:
        do = ag.capture(step, warmup=0)
        do(*args), do(*args)

    with pytest.raises(CaptureError, match="values of the device were read"):
        after_warmup(lambda x: (w * x).sum().item(), x)
    with pytest.raises(ArgumentError, match="a host array was given"):
        after_warmup(lambda x, y: w * x, x, numpy.ones(4))
    with pytest.raises(CaptureError, match="recorded without a replay"):
        do = ag.capture(lambda x, n: w * x * n, warmup=0)
        for k in range(20):
            do(x, float(k))
