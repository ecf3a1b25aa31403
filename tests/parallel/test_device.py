"""Parallel training with device arrays: the CPU's values, and only the stated crossings.

`LAYERS` has a step or two of each layer. Its ranks are threads here, on the simulated device and on a GPU, and
processes in `programs/device_program.py`, on GPUs alone. The transport of threads needs host memory, so each collective
stages its data. The simulated device counts these copies (`staged`), so that those of the layers can be told: the flags
of a bucket, the norm of clipping, the loss of a trainer's step, and the copies of a compression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import arrays, nn, optim
from autograd.arrays import cuda
from collectives import Shard
from collectives.checks.modes import check_mode, set_check
from parallel import (
    Column,
    DataParallel,
    DiLoCo,
    Experts,
    Float16,
    Int8,
    LocalSGD,
    OneBit,
    PowerSGD,
    RandomK,
    Recompute,
    Ring,
    Row,
    Sequence,
    TopK,
    Trainer,
    Vocabulary,
)

from .. import emulator
from ..autograd.arrays import fake_device
from ..autograd.arrays.devices import DEVICES, Device
from ..collectives.launch import launch_command


def few(names: Iterable[str], *default: str) -> list[Any]:
    """Names as parameters of a test, all but some of them slow."""
    return [name if name in default else pytest.param(name, marks=pytest.mark.slow) for name in names]


ROWS = numpy.random.default_rng(0).standard_normal((8, 4)).astype("float32")
LABELS = numpy.arange(8) % 3
STEPS = 2


@pytest.fixture(params=DEVICES)
def there(request: pytest.FixtureRequest) -> Iterator[Device]:
    with request.param.as_cuda():
        yield request.param


def own_crossings() -> dict[str, int]:
    """The copies between host and device so far, without those of the transport."""
    return {way: n - fake_device.staged[way] for way, n in fake_device.crossings.items()}


@contextmanager
def unchecked() -> Iterator[None]:
    """A block without the comparisons between the ranks, which read values from the device."""
    before = check_mode()
    set_check("off")
    try:
        yield
    finally:
        set_check(before)


def model() -> nn.Sequential:
    ag.random.seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def compare(of_host: list[Any], of_device: list[Any], there: Device) -> None:
    """The parameters or gradients of a rank, and losses, which are numbers, within a relative 1e-4."""
    assert of_host, "the program returned nothing to compare"
    for a, b in zip(of_host, of_device, strict=True):
        a, b = (x.array if isinstance(x, ag.Tensor) else x for x in (a, b))
        numpy.testing.assert_allclose(b if isinstance(b, float) else there.values(b), a, rtol=1e-4, atol=1e-5)


def on_both(program: Callable[[str], list[Any]], there: Device, ranks: int = 2) -> None:
    """Run a program of ranks on the host and on the device, and compare what it returns."""
    found = (cc.run(lambda d=device: program(d), ranks) for device in ("cpu", "cuda"))
    for of_host, of_device in zip(*found, strict=True):
        compare(of_host, of_device, there)


def part(mesh: Any, device: str, *axes: str) -> tuple[Any, Any]:
    """This rank's rows and labels."""
    on = mesh.axis(axes or "dp")
    n = len(ROWS) // on.size
    mine = slice(int(on.rank) * n, (int(on.rank) + 1) * n)
    labels = dict.fromkeys(axes or ("dp",), Shard(0))
    x, y = (ag.tensor(a[mine], labels, global_shape=a.shape, device=device) for a in (ROWS, LABELS))
    return x, y


def train(wrapped: Any, opt: Any, x: Any, y: Any, steps: int = 2, clip: float | None = None) -> None:
    for _ in range(steps):
        with ag.Tape() as tape:
            loss = nn.cross_entropy(wrapped(x), y, reduction="sum") / len(ROWS)
            loss = cc.all_reduce(loss, "dp", to=cc.I)
        tape.backward(loss)
        if clip is not None:
            optim.clip_grad_norm_(wrapped.parameters(), clip)
        opt.step()
        opt.zero_grad()


OPTIONS: dict[str, Any] = {
    "buckets": {},
    "small buckets": {"bucket_bytes": 64, "first_bucket_bytes": 32},
    "one a parameter": {"bucket_bytes": 0},
    "ZeRO-1": {"zero": 1},
    "ZeRO-2": {"zero": 2},
    "ZeRO-3": {"zero": 3},
}


def data_parallel(device: str, name: str = "buckets") -> tuple[list[Any], dict[str, int], Any]:
    """The parameters after some steps, the copies between host and device in all but the first, and the module."""
    with cc.Mesh(dp=2) as mesh:
        wrapped = DataParallel(model().to(device=device), "dp", **OPTIONS[name])
        opt = optim.AdamW(wrapped.parameters(), lr=0.01, digest_every=0)
        x, y = part(mesh, device)
        train(wrapped, opt, x, y, 1)
        cc.barrier("dp")
        before = own_crossings()
        train(wrapped, opt, x, y, STEPS, clip=0.1)
        cc.barrier("dp")
        crossed = {way: n - before[way] for way, n in own_crossings().items()}
        held = [*wrapped.kept_buffers(), *wrapped.gathered_arrays()]
        held += [s for each in opt.state_lists() for s in each if hasattr(s, "dtype")]
        assert {arrays.device_of(a).partition(":")[0] for a in held} <= {device}
        return wrapped.parameters(), crossed, wrapped


@pytest.mark.parametrize("name", few(OPTIONS, "buckets", "ZeRO-2", "ZeRO-3"))
def test_data_parallel(name: str, there: Device) -> None:
    crossings = {}

    def program(device: str) -> list[Any]:
        parameters, *crossings[device] = data_parallel(device, name)
        return parameters

    with unchecked():
        on_both(program, there)
    found, wrapped = crossings["cuda"]
    entries = [*wrapped._entries, *([] if wrapped._layers is None else wrapped._layers.entries)]
    buckets = sum(len(entry._plan.call.runs.places) for entry in entries if entry.indices)
    flags = 2 * STEPS * buckets
    if there.name == "fake":
        assert found == {"to host": flags + 2 * STEPS, "from host": flags}, "flags of buckets, and a norm"


REDUCTIONS: dict[str, Callable[[], Any]] = {
    "Float16": Float16,
    "Int8": Int8,
    "OneBit": OneBit,
    "TopK": lambda: TopK(0.25),
    "RandomK": lambda: RandomK(0.5),
    "PowerSGD": lambda: PowerSGD(rank=1),
}


@pytest.mark.parametrize("name", few(REDUCTIONS, "Int8", "PowerSGD"))
def test_compressed_gradients(name: str, there: Device) -> None:
    def program(device: str) -> list[Any]:
        with cc.Mesh(dp=2) as mesh:
            m = model().to(device=device, dtype="float64")
            # A bucket for each parameter: the blocks of a quantisation depend on the order of parameters in a bucket,
            # which is that of the operations, and some of these are fused on the host only.
            wrapped = DataParallel(m, "dp", bucket_bytes=0, reduction=REDUCTIONS[name]())
            x, y = part(mesh, device)
            train(wrapped, optim.SGD(wrapped.parameters(), lr=0.1), x.to("float64"), y, steps=3)
            return wrapped.parameters()

    on_both(program, there)


def accumulated(device: str) -> list[Any]:
    """The gradients of two microbatches of different sizes."""
    with cc.Mesh(dp=2) as mesh:
        wrapped = DataParallel(model().to(device=device), "dp")
        at = 4 * int(mesh.axis("dp").rank)
        with wrapped.accumulate():
            for rows in (slice(at, at + 1), slice(at + 1, at + 4)):
                x, y = (cc.from_local(arrays.to_device(a[rows], device), {"dp": Shard(0)}) for a in (ROWS, LABELS))
                with ag.Tape() as tape:
                    loss = nn.cross_entropy(wrapped(x), y, reduction="sum") / len(ROWS)
                tape.backward(loss)
        return [p.grad for p in wrapped.parameters()]


def local_steps(device: str, kind: Any) -> list[Any]:
    with cc.Mesh(dp=2) as mesh:
        ag.random.seed(0)
        m = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).to(device=device)
        opt = optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
        at = int(mesh.axis("dp").rank) * 4
        x, y = (ag.tensor(a[at : at + 4], device=device) for a in (ROWS, LABELS))
        with kind(m, "dp", opt, every=2) as local:
            for _ in range(3):
                with ag.Tape() as tape:
                    loss = cc.declare_partial(nn.cross_entropy(m(x), y, reduction="sum"), "dp")
                tape.backward(loss)
                local.step()
                opt.zero_grad()
        return m.parameters()


def trained(device: str, axis: str, plan: Any = None, made: Any = None, save: str = "", **options: Any) -> list[Any]:
    """The losses of a trainer's steps on two ranks of an axis, and the parameters of this rank.

    With `save`, a folder, the last step is that of another trainer, which has loaded what the first one saved there.
    """
    from .models import gpt

    x, y = numpy.random.default_rng(1).integers(0, 13, (2, 4, 8))
    config = gpt.Config(vocabulary=13, width=8, heads=2, layers=2, dropout=0.1, **(made or {}))

    def make() -> Trainer:
        return Trainer(
            lambda: gpt.gpt(config, ag.random.Key(1), numpy.float32), gpt.Loss(), cc.Mesh.fit(**{axis: 2}), plan,
            optimizer=lambda p: optim.AdamW(p, lr=1e-2), clip=0.5, microbatches=2, device=device, **options,
        )  # fmt: skip

    trainer = make()
    losses = [trainer.step(x, y)]
    if save:
        trainer.save(save)
        trainer = make()
        trainer.load(save)
    losses.append(trainer.step(x, y))
    return [*losses, *trainer.parameters.values()]


PLAN = {
    "*.table": Vocabulary("tp"), "*.qkv": Column("tp", blocks=3), "*.proj": Row("tp"), "*.mlp.up": Column("tp"),
    "*.mlp.down": Row("tp"), "*.out": Vocabulary("tp"), "loss.rows": Vocabulary("tp"), "*.attend": Ring("cp"),
}  # fmt: skip
SEQUENCE = PLAN | {
    "*.table": Vocabulary("tp", to=Shard(1)), "*.proj": Row("tp", to=Shard(1)), "*.mlp.down": Row("tp", to=Shard(1)),
    "*.norm*": Sequence("tp"),
}  # fmt: skip

LAYERS: dict[str, Callable[[str], list[Any]]] = {
    "accumulation": accumulated,
    "local steps": lambda device: local_steps(device, LocalSGD),
    "DiLoCo": lambda device: local_steps(device, DiLoCo),
    "tensor parallel": lambda device: trained(device, "tp", PLAN),
    "sequence parallel": lambda device: trained(
        device, "tp", SEQUENCE | {f"{i}": Recompute() for i in range(1, 3)}),
    "pipeline": lambda device: trained(device, "pp", PLAN, schedule="1f1b"),
    "pipeline, zero bubble": lambda device: trained(device, "pp", PLAN, schedule="zb-h1"),
    "ring attention": lambda device: trained(device, "cp", PLAN),
    "a trainer with ZeRO-3": lambda device: trained(device, "dp", PLAN, zero=3),
    "experts": lambda device: trained(device, "ep", PLAN | {"2.mlp": Experts("ep")}, {"experts": 4}),
}  # fmt: skip
"""On two ranks, what one step or two of each layer give on a device."""
LONG = "local steps", "sequence parallel", "pipeline, zero bubble", "a trainer with ZeRO-3"


@pytest.mark.parametrize("name", few(LAYERS, *(set(LAYERS) - set(LONG))))
def test_layers(name: str, there: Device) -> None:
    on_both(LAYERS[name], there)


def test_a_checkpoint(there: Device, tmp_path: Path) -> None:
    on_both(lambda device: trained(device, "dp", PLAN, zero=2, save=str(tmp_path / device)), there)


@pytest.mark.gpu
@pytest.mark.skipif(bool(cuda.why_not()), reason=cuda.why_not() or "")
@pytest.mark.parametrize("name", ["nccl", "ipc", "staged"])
def test_processes(name: str, tmp_path: Path) -> None:
    """Over each carrier of device arrays, with a GPU for each rank or one for both."""
    if name == "nccl" and cuda.library("this test").cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one GPU; needed: 2")
    program = Path(__file__).parent / "programs" / "device_program.py"
    outcome = launch_command([str(program), name, str(tmp_path)], 2, limit_s=emulator.LIMIT_S or 200)
    assert not outcome.is_late and outcome.code == 0, outcome.err
    assert outcome.out.split("\n")[:-1] == [*OPTIONS, *LAYERS, "a checkpoint"]
