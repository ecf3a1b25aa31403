"""Moves between devices, operands on different devices, and the memory of a tape on a device."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import arrays, nn, ops, random
from autograd.arrays import cuda
from autograd.engine.primitive import registry

from . import fake_device
from .devices import DEVICES, Device
from .fake_device import DeviceArray


@pytest.fixture(params=DEVICES)
def there(request: pytest.FixtureRequest) -> Any:
    with request.param.as_cuda():
        yield request.param


@pytest.fixture
def fake() -> Any:
    gc.collect()  # arrays of other tests, which would be freed while memory is counted
    with fake_device.as_cuda():
        yield fake_device


# -- moves -----------------------------------------------------------------------------------------------------------


def test_a_move_is_differentiable_and_its_adjoint_moves_back(there: Device) -> None:
    x = numpy.array([1.0, 2.0, 3.0])

    def f(z: Any) -> Any:
        return (z.to("cuda") ** 3).sum().to("cpu")

    assert isinstance(ag.grad(f)(x), numpy.ndarray)
    numpy.testing.assert_allclose(ag.grad(f)(x), 3 * x**2)
    numpy.testing.assert_allclose(ag.jvp(f, (x,), (x,))[1], (3 * x**3).sum())
    numpy.testing.assert_allclose(ag.hvp(f, (x,), (numpy.ones(3),))[1], 6 * x)
    w = ag.Parameter(x, device="cuda")
    with ag.Tape() as tape:
        loss = (w.cpu() * x).sum()
    tape.backward(loss)
    assert loss.device == "cpu" and w.grad is not None and w.grad.device == "cuda:0"
    numpy.testing.assert_allclose(there.values(w.grad), x)


def test_moves_have_the_forms_of_torch(there: Device) -> None:
    x = ag.tensor([1.0, 2.0])
    y = x.cuda()
    assert x.device == "cpu" and y.device == x.to("cuda:0").device == x.cuda(0).device == "cuda:0"
    assert y.to("cuda") is y and x.to("cpu") is x and y.to(y) is y
    z = x.to("cuda", "float32")
    assert z.dtype == numpy.float32 and x.to(z).device == "cuda:0" and x.to(z).dtype == numpy.float32
    assert x.to(numpy.float32).device == "cpu" and x.to(dtype="float32", device="cuda").dtype == numpy.float32
    assert ag.tensor(2.5).to("cuda").shape == () and ag.tensor(2.5).cuda().item() == 2.5
    assert ag.constant([1, 2], device="cuda").device == "cuda:0"
    assert type(ag.tensor(2.5).cuda().cpu().array) is numpy.float64, "numbers on the host are NumPy scalars"
    with pytest.raises(ag.OptionError, match="'cpu', 'cuda' or 'cuda:0'"):
        x.to(device="gpu")
    with pytest.raises((ag.OptionError, ag.ArgumentError)):
        x.to("gpu")


def test_plain_data_of_a_tensor_on_a_device(there: Device) -> None:
    x = ag.tensor([1.0, 2.0], device="cuda")
    assert type(x.numpy()) is numpy.ndarray and numpy.asarray(x).tolist() == x.tolist() == [1, 2]
    there.values(x.data)
    w = ag.Parameter([1.0, 2.0], device="cuda")
    w.data = numpy.array([3.0, 4.0])
    assert there.values(w).tolist() == [3, 4], "the values change, and the device does not"
    w.data = w.numpy() - 0.5 * w.numpy()
    assert there.values(w).tolist() == [1.5, 2]


def test_a_module_moves_with_its_gradients_and_buffers(there: Device) -> None:
    m = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    x = numpy.arange(6.0, dtype="float32").reshape(3, 2)
    with ag.Tape() as tape:
        loss = (m(x) ** 2).sum()
    tape.backward(loss)
    before = [p.grad.numpy() for p in m.parameters()]
    assert m.cuda() is m and m.cuda(0) is m
    for p, g in zip(m.parameters(), before, strict=True):
        numpy.testing.assert_array_equal(there.values(p.grad), g)
    assert all(arrays.device_of(b) == "cuda:0" for b in m.buffers())
    assert all(isinstance(a, numpy.ndarray) for a in m.state_dict().values())
    m.to("cpu")
    assert {p.device for p in m.parameters()} == {"cpu"}
    loss = nn.CrossEntropyLoss(weight=numpy.ones(3)).cuda()
    there.values(loss.weight)
    assert loss.state_dict() == {}


def test_draws_are_the_same_on_both_devices(there: Device) -> None:
    key, on_host, on_device = random.Key(1, "x"), ag.tensor(numpy.zeros((3, 4))), ag.tensor(numpy.zeros((3, 4))).cuda()
    for draw in (random.normal, random.uniform, lambda k, x: random.bernoulli(k, x, 0.5),
                 lambda k, x: random.integers(k, x, 0, 9)):  # fmt: skip
        numpy.testing.assert_array_equal(there.values(draw(key, on_device)), draw(key, on_host))
    a, b = nn.Linear(4, 3), nn.Linear(4, 3).cuda()
    for init in (nn.init.xavier_uniform_, nn.init.orthogonal_, nn.init.ones_, nn.init.trunc_normal_):
        ag.random.seed(0)
        init(a.weight)
        ag.random.seed(0)
        init(b.weight)
        numpy.testing.assert_array_equal(there.values(b.weight), a.weight.numpy())


def test_several_devices(fake: Any) -> None:
    assert arrays.current_device() == "cuda:0"
    with pytest.raises(ag.DeviceError, match="there are 2 GPUs"):
        ag.tensor([1.0], device="cuda:7")
    for make in (lambda: ag.tensor([1.0], device="cuda:1"), lambda: nn.Linear(1, 1).to(device="cuda:1"),
                 lambda: ag.tensor([1.0]).cuda(1)):  # fmt: skip
        with pytest.raises(ag.DeviceError, match="current device of this thread is 'cuda:0'") as error:
            make()
        assert "fix: ag.use_device('cuda:1')" in str(error.value)
    x = ag.tensor([1.0], device="cuda")
    with fake.on(1):
        y = ag.tensor([1.0], device="cuda")
        assert y.device == "cuda:1" and nn.Linear(1, 1).to("cuda:1").weight.device == "cuda:1"
        assert x.to("cuda").device == "cuda:1", "a copy from another GPU"
        with pytest.raises(ag.DeviceError, match="x: float64.1. on cuda:0, y: float64.1. on cuda:1"):
            x + y
        with pytest.raises(ag.DeviceError, match="an array on 'cuda:0' was given"):
            ag.tensor(x.array)
        ag.use_device("cuda:0")
        assert fake_device.current() == 0


def test_without_cupy_the_fix_is_named() -> None:
    if cuda.why_not() != "CuPy is not installed (extra: gpu)":
        pytest.skip("CuPy is installed")
    for make in (lambda: ag.tensor([1.0], device="cuda"), lambda: nn.Linear(1, 1).cuda(),
                 lambda: ag.use_device("cuda")):  # fmt: skip
        with pytest.raises(ag.DependencyError, match="ringtape.gpu"):
            make()
    ag.use_device("cpu")


# -- operands on different devices -------------------------------------------------------------------------------------

MIXED: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda d, h: d + h,
    "add, reversed": lambda d, h: h + d,
    "matmul": lambda d, h: d @ h,
    "where": lambda d, h: np.where(h > 0, d, 0.0),
    "concatenate": lambda d, h: np.concatenate([d, h]),
    "stack": lambda d, h: np.stack([h, d]),
    "maximum": np.maximum,
    "isclose": np.isclose,
    "a scatter": lambda d, h: registry["scatter_along_axis"](d, numpy.zeros((2, 2), int), options=(0, (2, 2))),
    "take_along_axis": lambda d, h: np.take_along_axis(d, numpy.argsort(ops.stop_gradient(h).numpy()), 0),
    "an index": lambda d, h: d[numpy.array([0, 1])],
    "an index Tensor": lambda d, h: d[ag.tensor(numpy.array([0, 1]))],
    "a mask": lambda d, h: d[numpy.ones((2, 2), bool)],
    "take": lambda d, h: np.take(d, numpy.array([0, 1]), 0),
    "labels": lambda d, h: nn.cross_entropy(d, numpy.array([0, 1])),
    "labels with weights": lambda d, h: nn.functional.cross_entropy(d, numpy.array([0, 1]), numpy.ones(2)),
    "a target": lambda d, h: nn.mse_loss(d, numpy.ones((2, 2))),
    "an embedding": lambda d, h: nn.embedding(numpy.array([0, 1]), d),
    "a linear layer": lambda d, h: nn.functional.linear(h, d),
    "einsum": lambda d, h: np.einsum("ij,jk", d, h),
    "attention": lambda d, h: ops.attention(d[None], h[None], d[None]),
    "layer norm": lambda d, h: ops.layer_norm(d, numpy.ones(2), numpy.ones(2)),
    "a list of both": lambda d, h: np.array([d, h]),
}


@pytest.mark.parametrize("name", MIXED)
def test_operands_on_different_devices_are_refused(name: str, there: Device) -> None:
    d, h = (ag.tensor(numpy.ones((2, 2)), requires_grad=True, device=device) for device in ("cuda", "cpu"))
    with ag.Tape(), there.without_crossings(), pytest.raises(ag.DeviceError, match="on different devices") as error:
        MIXED[name](d, h)
    assert "fix: " in str(error.value) and "on cpu" in str(error.value) and "on cuda:0" in str(error.value)


def test_numbers_are_on_all_devices(there: Device) -> None:
    x = ag.tensor([1.0, 2.0], device="cuda")
    with there.without_crossings():
        for y in (x + 1, 2.0 * x, x * numpy.float64(2), x ** numpy.int64(2), np.maximum(x, 0), np.where(x > 1, x, 0.0)):
            there.values(y)
    assert there.values(x[[1, 0]]).tolist() == [2, 1], "a list of indices is moved"


def test_a_cotangent_elsewhere_is_refused(there: Device) -> None:
    w = ag.Parameter([1.0, 2.0], device="cuda")
    with ag.Tape() as tape:
        y = w * 2.0
    with pytest.raises(ag.DeviceError, match=r"output: float64.2. on cuda:0, cotangent: float64.2. on cpu"):
        tape.backward(y, numpy.ones(2))
    tape.backward(y, 1.0)
    assert there.values(w.grad).tolist() == [2, 2]
    v = ag.Parameter([1.0, 2.0])
    with ag.Tape() as tape:
        y = v * 2.0
    with pytest.raises(ag.DeviceError, match="output: float64.2. on cpu, cotangent: float64.2. on cuda:0"):
        tape.backward(y, there.move(numpy.ones(2)))


def test_a_list_of_device_arrays_is_refused(there: Device) -> None:
    with pytest.raises(ag.DeviceError, match="fix: autograd.numpy.stack"):
        ag.tensor([there.move([1.0]), there.move([2.0])])


# -- memory ----------------------------------------------------------------------------------------------------------


def depth(layers: int) -> tuple[Any, int]:
    """A function of a weight with a chain of layers, and the bytes of an activation."""

    def f(w: Any) -> Any:
        y = w
        for _ in range(layers):
            y = np.tanh(y)
        return (y * y).sum()

    return f, 8 * 1000


def test_backward_releases_the_memory_of_the_tape(fake: Any) -> None:
    """Each step of backward frees the activation of its node: at most a few more arrays than after the forward pass."""
    layers = 20
    f, size = depth(layers)
    w = ag.Parameter(numpy.zeros(1000), device="cuda")
    memory = fake.memory
    start = memory.live_bytes
    with ag.Tape() as tape:
        loss = f(w)
    forward = memory.live_bytes - start
    assert forward >= layers * size, "tanh saves its results"
    memory.reset_peak()
    live: list[int] = []
    def watch(phase: str, way: str, *what: Any) -> None:
        if (phase, way) == ("end", "backward"):
            live.append(memory.live_bytes - start)

    with ag.events.listening(watch):
        tape.backward(loss)
    assert memory.peak_bytes - start <= forward + 4 * size
    assert live[layers] <= forward - (layers - 6) * size, "memory falls as backward goes"
    del loss
    assert memory.live_bytes - start <= 2 * size, "the gradient is left"


def test_a_retained_tape_keeps_its_memory(fake: Any) -> None:
    """The opposite: the test above would see it."""
    layers = 20
    f, size = depth(layers)
    w = ag.Parameter(numpy.zeros(1000), device="cuda")
    start = fake.memory.live_bytes
    with ag.Tape() as tape:
        loss = f(w)
    tape.backward(loss, retain=True)
    assert fake.memory.live_bytes - start >= layers * size


def test_checkpointed_layers_hold_less(fake: Any) -> None:
    layers, size = 16, 8 * 1000

    def chained(w: Any) -> Any:
        part = ag.checkpoint(lambda y: np.tanh(np.tanh(np.tanh(np.tanh(y)))))
        y = w
        for _ in range(layers // 4):
            y = part(y)
        return y.sum()

    w = ag.Parameter(numpy.zeros(1000), device="cuda")
    start = fake.memory.live_bytes
    with ag.Tape() as tape:
        loss = chained(w)
    assert fake.memory.live_bytes - start <= (layers // 4 + 2) * size
    tape.backward(loss)
    assert isinstance(w.grad.array, DeviceArray)
