"""Arrays that are not NumPy's: on a (fake) device, without implicit conversions; and arrays that have a shape only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import arrays, nn, optim
from autograd.arrays.shape_only import Shaped
from collectives import I, P, R, Rooted, Shard, V

from ...grouped import each, in_groups
from ...proofs.operations import CASES, Case
from ..ops.test_operations import named, raw
from . import fake_device
from .fake_device import DeviceArray, Mixed


def device(x: Any) -> DeviceArray:
    return fake_device.from_host(numpy.asarray(x))


def values(x: Any) -> Any:
    """What a test compares; asserts that it lived on the device."""
    x = x.array if isinstance(x, ag.Tensor) else x
    assert isinstance(x, DeviceArray), f"{type(x).__name__} is not on the device"
    return x._values


@contextmanager
def without_crossings() -> Iterator[None]:
    before = dict(fake_device.crossings)
    yield
    assert fake_device.crossings == before, "values crossed between host and device"


# -- the fake itself -------------------------------------------------------------------------------------------------


def test_the_fake_device_refuses_what_a_gpu_does() -> None:
    x = device([1.0, 2.0])
    for f in (lambda: numpy.asarray(x), lambda: float(x[0]), lambda: bool(x[0]), lambda: list(x),
              lambda: numpy.array([x, x])):  # fmt: skip
        with pytest.raises(TypeError):
            f()
    mask = numpy.array([True, False])
    for g in (lambda: x + numpy.ones(2), lambda: numpy.ones(2) * x, lambda: numpy.where(mask, x, x),
              lambda: numpy.concatenate([x, numpy.ones(2)])):  # fmt: skip
        with pytest.raises(Mixed):
            g()
    assert values(x * 2 + numpy.float64(1)).tolist() == [3, 5]
    assert arrays.is_array(x) and arrays.as_array(x) is x
    assert arrays.to_host(x).tolist() == [1, 2]
    assert values(arrays.move(numpy.ones(2), x)).tolist() == [1, 1]
    assert arrays.move(numpy.ones(2), numpy.zeros(1)).tolist() == [1, 1]


# -- training --------------------------------------------------------------------------------------------------------


def mlp(on_device: bool) -> nn.Module:
    ag.random.seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3), nn.Sigmoid())
    if on_device:
        for p in model.parameters():
            p.array = device(p.array)
    return model


@pytest.mark.parametrize("optimizer", [
    lambda ps: optim.SGD(ps, lr=0.1), lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
    lambda ps: optim.Adam(ps, lr=0.01),
], ids=["SGD", "SGD with momentum and decay", "Adam"])  # fmt: skip
def test_a_training_step_stays_on_the_device(optimizer: Callable[[Any], Any]) -> None:
    rng = numpy.random.default_rng(0)
    x, y = rng.standard_normal((5, 4)).astype("float32"), rng.integers(0, 3, 5)
    results = []
    for on_device in (False, True):
        model = mlp(on_device)
        steps = optimizer(model.parameters())
        data = (device(x), device(y)) if on_device else (x, y)
        losses = []
        for _ in range(3):
            with without_crossings():
                with ag.Tape() as tape:
                    loss = nn.cross_entropy(model(data[0]), data[1], reduction="sum") * (1 / 5)
                tape.backward(loss)
                steps.step()
                steps.zero_grad()
            losses.append(loss.item())
        for p in model.parameters():
            assert isinstance(p.array, DeviceArray) == on_device
            assert p.array.dtype == numpy.float32
        results.append((losses, [arrays.to_host(p.array) for p in model.parameters()]))
    (host_losses, host), (device_losses, there) = results
    numpy.testing.assert_allclose(device_losses, host_losses, rtol=1e-5)
    for a, b in zip(host, there, strict=True):
        numpy.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_state_goes_to_the_host_and_back() -> None:
    model, other = mlp(True), mlp(True)
    saved = model.state_dict()
    assert all(type(a) is numpy.ndarray for a in saved.values())
    other.load_state_dict({name: a + 1 for name, a in saved.items()})
    for name, p in other.named_parameters():
        assert numpy.array_equal(values(p), saved[name] + 1)


def test_reading_a_tensor_on_the_device() -> None:
    x = ag.tensor(device([[1.0, 2.0]]))
    assert x.numpy().tolist() == [[1, 2]] and type(x.numpy()) is numpy.ndarray
    assert x.sum().item() == 3 and float(x.sum()) == 3 and bool(x.sum() > 2) and int(x.sum()) == 3
    assert repr(x) == "Tensor([[1., 2.]])"
    assert isinstance(x.data, DeviceArray)
    assert numpy.asarray(x).tolist() == [[1, 2]]
    assert x.shape == (1, 2) and x.ndim == 2 and x.size == 2 and len(x) == 1


# -- ownership; every operation on devices is in test_devices.py ------------------------------------------------------


def test_gradients_on_the_device_are_owned() -> None:
    a, b = ag.Parameter(device([1.0, 2.0])), ag.Parameter(device([3.0, 4.0]))
    with ag.Tape() as tape:
        y = (a + b) + (b + 0.0)
    ct = device([1.0, 1.0])
    tape.backward(y, ct)
    arrays_ = [values(a.grad), values(b.grad), values(ct)]
    assert not any(numpy.shares_memory(p, q) for i, p in enumerate(arrays_) for q in arrays_[i + 1 :])
    tape2 = ag.Tape()
    with tape2:
        loss = (a * b).sum()
    tape2.backward(loss)
    assert values(a.grad).tolist() == [4, 5] and values(b.grad).tolist() == [3, 4]


# -- collectives -----------------------------------------------------------------------------------------------------


def on_three(program: Callable[[Any, int], Any]) -> list[Any]:
    def run() -> Any:
        with cc.Mesh(dp=3) as mesh:
            return program(mesh, int(mesh.axis("dp").rank))

    return cc.run(run, 3)


def data(rank: int, *shape: int) -> Any:
    return numpy.random.default_rng(rank).standard_normal(shape)


COLLECTIVES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "all_reduce to R": (V, lambda x: cc.all_reduce(x, "dp")),
    "all_reduce to I": (P, lambda x: cc.all_reduce(x, "dp", to=I)),
    "mean": (V, lambda x: cc.mean(x, "dp", to=I)),
    "all_gather to R": (V, lambda x: cc.all_gather(x, "dp")),
    "all_gather to I": (V, lambda x: cc.all_gather(x, "dp", dim=1, to=I)),
    "reduce_scatter": (P, lambda x: cc.reduce_scatter(x, "dp", dim=1)),
    "cast I to R": (I, lambda x: cc.cast(x, "dp", to=R)),
    "cast R to I": (R, lambda x: cc.cast(x, "dp", to=I)),
    "cast R to P": (R, lambda x: cc.cast(x, "dp", to=P)),
    "cast I to P": (I, lambda x: cc.cast(x, "dp", to=P)),
    "declare_partial": (V, lambda x: cc.declare_partial(x, "dp")),
    "shard R": (R, lambda x: cc.shard(x, "dp", dim=1)),
    "shard I": (I, lambda x: cc.shard(x, "dp", dim=1)),
    "all_to_all": (V, lambda x: cc.all_to_all(x, "dp", 1, 0)),
    "permute": (V, lambda x: cc.permute(x, "dp", [(0, 1), (1, 2)])),
    "broadcast to R": (V, lambda x: cc.broadcast(x, "dp", root=1)),
    "broadcast to I": (V, lambda x: cc.broadcast(x, "dp", root=1, to=I)),
    "scatter": (V, lambda x: cc.scatter(x, "dp", root=1, dim=1)),
    "reduce": (P, lambda x: cc.reduce(x, "dp", root=2)),
    "gather": (V, lambda x: cc.gather(x, "dp", root=2)),
}


@in_groups()
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_on_the_device(name: str) -> None:
    """The same collective on host and device arrays: values and gradients are equal and stay where they live."""
    label, f = COLLECTIVES[name]

    def program(mesh: Any, rank: int) -> Any:
        results = []
        for place in (numpy.asarray, device):
            array = data(0 if label in (R, I) else rank, 2, 6)
            x = ag.tensor(place(array), {"dp": label}, requires_grad=True)
            with ag.Tape() as tape:
                y = f(x)
            if y.absent:
                tape.backward([], [])
                results.append((None, raw_or_none(x.grad, place)))
                continue
            ct = data(10 if y.layout["dp"] in (P, I) else 10 + rank, *y.array.shape)
            tape.backward(y, ag.tensor(place(ct), y.layout.dual))
            results.append((check_place(y, place), raw_or_none(x.grad, place)))
        (y_host, g_host), (y_device, g_device) = results
        for a, b in ((y_host, y_device), (g_host, g_device)):
            assert (a is None) == (b is None)
            assert a is None or numpy.array_equal(a, b)

    def check_place(x: Any, place: Any) -> Any:
        assert isinstance(x.array, DeviceArray) == (place is device), f"{type(x.array).__name__} in the wrong place"
        return arrays.to_host(x.array)

    def raw_or_none(x: Any, place: Any) -> Any:
        return None if x is None or isinstance(x.array, Shaped) else check_place(x, place)

    on_three(program)


def test_send_and_recv_on_the_device() -> None:
    """What arrives goes where `like` lives; the cotangent comes back to where the sender's value lives."""

    def program(mesh: Any, rank: int) -> Any:
        w = ag.Parameter(device([2.0, 3.0]), {"dp": V})
        with ag.Tape() as tape:
            if rank == 0:
                cc.send(w * 2.0, "dp", 1)
                loss = cc.declare_partial(w.sum() * 0.0, "dp")
            elif rank == 1:
                x = cc.recv("dp", 0, like=w)
                assert isinstance(x.array, DeviceArray)
                loss = cc.declare_partial((x * w).sum(), "dp")
            else:
                loss = cc.declare_partial(w.sum() * 0.0, "dp")
        tape.backward(loss)
        return values(w.grad).tolist()

    assert on_three(program) == [[4, 6], [4, 6], [0, 0]]


def test_broadcast_of_a_value_that_only_the_root_has() -> None:
    def program(mesh: Any, rank: int) -> Any:
        w = ag.Parameter(device([2.0, 3.0]), {"dp": V}) if rank == 1 else None
        like = ag.tensor(device([0.0, 0.0]))
        with ag.Tape() as tape:
            y = cc.broadcast(w, "dp", root=1, like=like)
            assert isinstance(y.array, DeviceArray)
            loss = cc.all_reduce((y * device([1.0, rank])).sum(), "dp", to=I)
        tape.backward(loss)
        return None if w is None else values(w.grad).tolist()

    assert on_three(program) == [None, [3, 3], None]


def test_data_parallel_training_on_the_device() -> None:
    from parallel import DataParallel

    x, y = data(0, 6, 4).astype("float32"), numpy.arange(6) % 3

    def program(mesh: Any, rank: int) -> Any:
        results = []
        for on_device in (False, True):
            model = DataParallel(mlp(on_device), "dp")
            steps = optim.Adam(model.parameters(), lr=0.01)
            rows = slice(2 * rank, 2 * rank + 2)
            place = device if on_device else numpy.asarray
            mine, labels = (ag.tensor(place(a[rows]), {"dp": Shard(0)}) for a in (x, y))
            for _ in range(2):
                with ag.Tape() as tape:
                    loss = cc.all_reduce(nn.cross_entropy(model(mine), labels, reduction="sum") * (1 / 6), "dp", to=I)
                tape.backward(loss)
                steps.step()
                steps.zero_grad()
            assert all(isinstance(p.array, DeviceArray) == on_device for p in model.parameters())
            results.append([arrays.to_host(p.array) for p in model.parameters()])
        for a, b in zip(*results, strict=True):
            numpy.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)

    on_three(program)


# -- arrays that have a shape only -----------------------------------------------------------------------------------


def shaped(x: Any) -> Shaped:
    return Shaped(x.shape, x.dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@each(CASES, lambda c: f"operations in {c.operation[0]}", named)
def test_shapes_without_values(c: Case, dtype: str) -> None:
    args = [a.astype(dtype) for a in c.draw()]
    with numpy.errstate(all="ignore"):
        expected = raw(c.f(*map(ag.tensor, args)))
    if c.label == "number" and c.operation == "where":
        found = np.where(_SHAPED_MASK, ag.tensor(shaped(args[0])), 0.0)
    else:
        found = c.f(*(ag.tensor(shaped(a)) for a in args))
    assert isinstance(found.array, Shaped) and found.absent
    assert found.array.shape == expected.shape
    assert found.array.dtype == expected.dtype


_SHAPED_MASK = numpy.ones((2, 3), bool)


@each(CASES, lambda c: f"operations in {c.operation[0]}", named)
def test_gradients_without_values(c: Case) -> None:
    """With a cotangent that has a shape only, the rules run on shapes too (what a dry world does)."""
    args = c.draw()
    with numpy.errstate(all="ignore"):
        y = ag.vjp(c.f, *args)[0]
    primitive_rules_run(c, [shaped(a) for a in args], y)


def primitive_rules_run(c: Case, args: list[Any], y: Any) -> None:
    leaves = [ag.tensor(a, requires_grad=True) for a in args]
    with ag.Tape() as tape:
        out = c.f(*leaves)
    nodes = tape.recording.nodes
    cts: dict[int, Any] = {out.node: Shaped(y.shape, y.dtype)}
    for place in range(len(nodes) - 1, -1, -1):
        node = nodes[place]
        if node is None or place not in cts or not hasattr(node[0], "cotangent"):
            continue
        op, kept_y, xs, parents, options, shapes, _ = node
        for i, parent in enumerate(parents):
            if parent >= 0:
                g = op.cotangent(i, cts[place], kept_y, xs, options)
                if shapes is not None:
                    from autograd.engine.dispatch import unbroadcast

                    g = unbroadcast(g, shapes[i])
                assert isinstance(g, Shaped)
                cts[parent] = g
    for place, ct in cts.items():
        node = nodes[place]
        if node is not None and node[0].name == "leaf":
            (leaf,) = node[2]
            assert ct.shape == leaf.array.shape and ct.dtype == leaf.array.dtype


def test_reading_what_is_not_there() -> None:
    a = Shaped((2, 3), "float32", "it lives on another rank")
    x = ag.tensor(a)
    for read in (lambda: numpy.asarray(a), lambda: float(a), lambda: int(a), lambda: bool(a), a.item, a.tolist,
                 lambda: arrays.to_host(a), x.numpy, x.item, lambda: float(x), lambda: bool(x > 0),
                 (x * 2).numpy, lambda: numpy.asarray(x), a.tobytes, lambda: complex(a)):  # fmt: skip
        with pytest.raises(ag.AbsentError) as error:
            read()
        assert "it lives on another rank" in str(error.value) and "Shaped(" in str(error.value)
    with pytest.raises(ag.AbsentError):
        a[0] = 1
    assert x.data is None and x.absent
    assert "absent" in repr(x) and "(2, 3)" in repr(x) and "float32" in repr(x)


def test_shaped_arrays_by_themselves() -> None:
    a = Shaped((2, 3), "float32")
    assert (a.ndim, a.size, a.nbytes, len(a), a.T.shape) == (2, 6, 24, 2, (3, 2))
    assert a.reshape(3, 2).shape == (3, 2) and a.reshape((6,)).shape == (6,) and a[0].shape == (3,)
    assert a.sum(axis=0).shape == (3,)
    assert (a + 1).dtype == numpy.float32 and (a + numpy.float64(1)).dtype == numpy.float64 and (a > 0).dtype == bool
    assert (a + numpy.ones((4, 1, 1))).shape == (4, 2, 3)
    assert (2.0 * a).shape == (2, 3) and (a @ a.T).shape == (2, 2)
    assert numpy.concatenate([a, a]).shape == (4, 3) and numpy.zeros_like(a).shape == (2, 3)
    assert numpy.add.reduce(a, axis=1).shape == (2,)
    with pytest.raises(ValueError):
        a + Shaped((4,))
    big = Shaped((10**6, 10**6))
    assert (big @ big).nbytes == (big @ big.T).nbytes == 8 * 10**12, "no memory is taken"
    assert (Shaped((7, 2, 3)) @ Shaped((3, 4))).shape == (7, 2, 4) and (Shaped((3,)) @ Shaped((3,))).shape == ()
    assert numpy.tanh(big).shape == big.shape and big.sum(axis=0).shape == (10**6,)


def test_a_rooted_value_off_its_root() -> None:
    def program(mesh: Any, rank: int) -> Any:
        w = ag.Parameter(numpy.ones((2, 2)), {"dp": V})
        with ag.Tape() as tape:
            y = cc.reduce(w * (rank + 1.0), "dp", root=1)
            assert y.layout["dp"] == Rooted(1) and y.absent == (rank != 1)
            z = np.tanh(y @ y.T).sum()
            assert z.shape == () and z.absent == (rank != 1)
        tape.backward(z)
        return w.grad.numpy()

    y = sum(numpy.ones((2, 2)) * (r + 1.0) for r in range(3))
    g = ag.grad(lambda v: np.tanh(v @ v.T).sum())(y)
    for rank, found in enumerate(on_three(program)):
        numpy.testing.assert_allclose(found, g * (rank + 1), rtol=1e-12)
