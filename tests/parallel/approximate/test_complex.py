"""Complex gradients and parameters: what ranks send or average is that of their pairs of real numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import optim
from collectives.transports.steps import finish
from parallel import BackupWorkers, CompressedAdam, DataParallel, DiLoCo, LocalSGD, NoiseScale, OneBit, ParameterServer
from parallel.data.buckets import Bucket, Place

from ...autograd.optim.complex_case import ROWS, Mixed, Twin, X, Y, assert_close, pairs
from .test_compression import METHODS, NAMES, SHAPES

pytestmark = pytest.mark.filterwarnings(
    "error::numpy.exceptions.ComplexWarning", "ignore:.*hold the same values:autograd.errors.ReplicaWarning"
)
RANKS = [1, 2, 3]


# -- compression -------------------------------------------------------------------------------------------------------
def bucket_of(parts: list[Any], used: list[float]) -> Bucket:
    """A bucket of parameters, with gaps of the same numbers of bytes for pairs as for complex numbers."""
    unit = 4 if parts[0].dtype.kind == "c" else 8
    offsets = np.cumsum([0] + [-(-part.size // unit) * unit for part in parts]).tolist()
    place = Place(
        tuple(range(len(parts))), NAMES, tuple(part.shape for part in parts), tuple(offsets[:-1]), offsets[-1],
        np.empty(0, parts[0].dtype),
    )  # fmt: skip
    bucket = Bucket(0, place, np.zeros(place.size, parts[0].dtype))
    for view, part in zip(bucket.parts(), parts, strict=True):
        view[...] = part
    bucket.flags[:] = used
    return bucket


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
@pytest.mark.parametrize("name", METHODS)
def test_a_method_compresses_pairs(name: str, dtype: str, ranks: int) -> None:
    def program() -> None:
        group, ours, theirs = cc.world(), METHODS[name](), METHODS[name]()
        for step in range(4):
            rng = np.random.default_rng([group.index, step])
            parts = [(rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype(dtype) for s in SHAPES]
            used = [1.0, float(group.index == 0), 1.0, 1.0, 0.0]
            of_complex, of_pairs = bucket_of(parts, used), bucket_of([pairs(x) for x in parts], used)
            finish(ours.reduce(of_complex, group))
            finish(theirs.reduce(of_pairs, group))
            for a, b in zip(of_complex.parts(), of_pairs.parts(), strict=True):
                np.testing.assert_array_equal(pairs(a), b)
            np.testing.assert_array_equal(of_complex.flags, of_pairs.flags)
        ours.load_state_dict(ours.state_dict(group), group)
        real = np.zeros((), dtype).real.dtype
        shapes = [(*s, 2) for s in SHAPES]
        assert ours.bytes_sent(SHAPES, 3, dtype) == theirs.bytes_sent(shapes, 3, real)

    cc.run(program, ranks)


@pytest.mark.parametrize("name", METHODS)
def test_a_dry_run_of_compression(name: str) -> None:
    with cc.dry(ranks=3, mesh={"dp": 3}) as run:
        model, method = Mixed(), METHODS[name]()
        model = DataParallel(model, "dp", reduction=method)
        x = cc.shard(ag.constant(X), "dp")
        with ag.Tape() as tape:
            loss = cc.all_reduce((anp.abs(model(x)) ** 2).sum(), "dp", to=cc.I)
        tape.backward(loss)
        optim.Adam(model.parameters()).step()
    assert run.traffic


def steps(
    model: Any, make: Callable[[Any], Any], count: int, after: Callable[[Any], Any] = lambda x: None
) -> list[float]:
    """The losses of some steps on this rank's rows."""
    optimizer, losses = make(model.parameters()), []
    x, y = (cc.shard(ag.constant(a), "dp") for a in (X, Y))
    for _ in range(count):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = cc.all_reduce((anp.abs(model(x) - y) ** 2).sum() / ROWS, "dp", to=cc.I)
        tape.backward(loss)
        after(x)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", [*METHODS, "1-bit Adam"])
def test_training_with_compressed_gradients(name: str, ranks: int) -> None:
    """It descends in both parts, and the ranks keep the same bits."""
    def program() -> Any:
        with cc.Mesh(dp=-1):
            if name == "1-bit Adam":
                method: Any = OneBit(block=4, momentum=0.9, start_step=10)
                model = DataParallel(Mixed(), "dp", reduction=method)
                losses = steps(model, lambda ps: CompressedAdam(ps, method, lr=0.05), 60)
            else:
                model = DataParallel(Mixed(), "dp", reduction=METHODS[name]())
                losses = steps(model, lambda ps: optim.SGD(ps, lr=0.05), 40)
            return losses, [p.numpy() for p in model.parameters()]

    found = cc.run(program, ranks)
    assert found[0][0][-1] < 0.4 * found[0][0][0]
    for _, values in found:
        for a, b in zip(values, found[0][1], strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_noise_scale_counts_both_parts() -> None:
    def program() -> Any:
        with cc.Mesh(dp=-1):
            noise = NoiseScale()
            model = DataParallel(Mixed(), "dp", reduction=noise)
            g = [0.0]

            def after(x: Any) -> None:
                g[0] = sum(float((np.abs(p.grad.numpy()) ** 2).sum()) for p in model.parameters())
                noise.update(x.shape[0], ROWS)

            steps(model, lambda ps: optim.SGD(ps, lr=0.0), 1, after)
            return noise.gradient_sq, noise.variance, g[0]

    for gradient_sq, variance, of_all in cc.run(program, 3):
        np.testing.assert_allclose(gradient_sq + variance / ROWS, of_all)  # the norm of the sum of all rows


# -- copies of one's own -----------------------------------------------------------------------------------------------
def _local(kind: Any, **options: Any) -> Any:
    def run(model: Any, optimizer: Any, backward: Callable[[], None], rank: int, ranks: int) -> None:
        with kind(model, "dp", optimizer, every=3, **options) as local:
            for k in range(20):
                optimizer.zero_grad()
                backward()
                local.step()
                if k == 8:
                    local.load_state_dict(local.state_dict())

    return run


def _server(model: Any, optimizer: Any, backward: Callable[[], None], rank: int, ranks: int) -> None:
    script = [r for _ in range(10) for r in range(ranks) for _ in ("read", "push")]
    with ParameterServer(model, "dp", optimizer, script=script) as server:
        for _ in range(10):
            server.read()
            backward()
            server.push()


def _backup(model: Any, optimizer: Any, backward: Callable[[], None], rank: int, ranks: int) -> None:
    needed = max(ranks - 1, 1)
    script = [[(step + i) % ranks for i in range(needed)] for step in range(6)]
    with BackupWorkers(model, "dp", optimizer, needed=needed, steps=6, script=script) as backup:
        for _ in backup:
            backward()
            backup.step(rows=len(np.array_split(X, ranks)[rank]))


KINDS = {
    "LocalSGD": _local(LocalSGD), "DiLoCo": _local(DiLoCo, outer_lr=0.5, outer_momentum=0.5),
    "DiLoCo without momentum": _local(DiLoCo, outer_lr=0.5, outer_momentum=0.0), "ParameterServer": _server,
    "BackupWorkers": _backup,
}  # fmt: skip
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "momentum": lambda ps: optim.SGD(ps, lr=0.02, momentum=0.9), "Adam": lambda ps: optim.Adam(ps, lr=0.05),
}  # fmt: skip


class _Parts:
    """A complex array as two real Tensors."""

    def __init__(self, array: Any):
        self.real, self.imag = ag.tensor(array.real.copy()), ag.tensor(array.imag.copy())


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_each_rank(kind: str, name: str, ranks: int) -> None:
    def program(model: Any, wrap: Any) -> Any:
        with cc.Mesh(dp=-1) as mesh:
            rank = int(mesh.axis("dp").rank)
            x, y = (wrap(np.array_split(a, ranks)[rank]) for a in (X, Y))

            def backward() -> None:
                with ag.Tape() as tape:
                    loss = cc.declare_partial(model.squares(x, y) / ROWS, "dp")
                tape.backward(loss)

            KINDS[kind](model, OPTIMIZERS[name](model.parameters()), backward, rank, ranks)
            return model.values()

    assert_close(cc.run(lambda: program(Mixed(), ag.tensor), ranks), cc.run(lambda: program(Twin(), _Parts), ranks))
