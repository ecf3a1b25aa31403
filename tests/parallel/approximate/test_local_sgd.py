"""Local SGD and DiLoCo against a serial program that trains the ranks' copies one after another, in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.errors import (
    ArgumentError,
    CollectiveMismatch,
    LayoutError,
    OptionError,
    ReplicaMismatch,
    SavedArrayError,
    TapeError,
)
from collectives.inspect.observing import observing
from parallel import DataParallel
from parallel.approximate.local_sgd import DiLoCo, LocalSGD

RANKS = [1, 2, 3, 5]
FEATURES, CLASSES = 6, 4
OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: optim.AdamW(p, lr=0.05),
}


def on_ranks(ranks: int, program: Callable[[cc.Mesh, int], Any]) -> list[Any]:
    """Run a program inside a mesh of one axis, 'dp'."""

    def rank_main() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            return program(mesh, int(mesh.axis("dp").rank))

    return cc.run(rank_main, ranks)


def make_model(dtype: Any = float) -> nn.Module:
    random.seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 5, dtype=dtype), nn.Tanh(), nn.Linear(5, CLASSES, dtype=dtype))


def batch(rank: int, step: int, dtype: Any = float) -> tuple[Any, Any]:
    """The rows of one rank, a different number of them on each."""
    generator = np.random.default_rng((rank, step))
    rows = 2 + rank
    return generator.normal(size=(rows, FEATURES)).astype(dtype), generator.integers(0, CLASSES, rows)


def backward(model: Any, rank: int, step: int, dtype: Any = float) -> None:
    x, y = batch(rank, step, dtype)
    with ag.Tape() as tape:
        loss = cc.declare_partial(nn.cross_entropy(model(x), y), "dp")
    tape.backward(loss)


def train(model: Any, local: LocalSGD, rank: int, steps: range | int) -> None:
    for step in range(steps) if isinstance(steps, int) else steps:
        local.optimizer.zero_grad()
        backward(model, rank, step)
        local.step()


def values(model: Any) -> list[np.ndarray]:
    return [np.array(p.numpy()) for p in model.parameters()]


def serial(
    ranks: int, make: Callable[[Any], optim.Optimizer], steps: int, every: int,
    outer: tuple[float, float] | None = None, weights: list[float] | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """The algorithm, written down: copies of one model, trained one after another and averaged."""
    models = [make_model() for _ in range(ranks)]
    optimizers = [make(model.parameters()) for model in models]
    shared, velocity = values(models[0]), None
    weights = weights or [1.0] * ranks
    for step in range(steps):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            x, y = batch(rank, step)
            with ag.Tape() as tape:
                loss = nn.cross_entropy(model(x), y)
            tape.backward(loss)
            optimizer.step()
        if (step + 1) % every == 0 or step + 1 == steps:
            copies = [values(model) for model in models]
            means = [sum(w * x for w, x in zip(weights, each, strict=True)) / sum(weights)
                     for each in zip(*copies, strict=True)]  # fmt: skip
            if outer is None:
                shared = means
            else:
                lr, momentum = outer
                d = [s - m for s, m in zip(shared, means, strict=True)]
                velocity = d if velocity is None else [momentum * v + g for v, g in zip(velocity, d, strict=True)]
                shared = [s - lr * (g + momentum * v) for s, g, v in zip(shared, d, velocity, strict=True)]
            for model in models:
                for p, value in zip(model.parameters(), shared, strict=True):
                    p.data = value
    return shared


def assert_close(ours: list[np.ndarray], theirs: list[np.ndarray], tolerance: float = 1e-12) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert np.linalg.norm(mine - other) <= tolerance * np.linalg.norm(other)


# -- the algorithms ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("ranks", RANKS)
def test_local_sgd_equals_the_serial_program(ranks: int, name: str) -> None:
    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = make_model()
        with LocalSGD(model, "dp", OPTIMIZERS[name](model.parameters()), every=3, bucket_bytes=104) as local:
            train(model, local, rank, 7)
        return values(model), local.version, {p.layout["dp"] for p in model.parameters()}

    expected = serial(ranks, OPTIMIZERS[name], 7, 3)
    for found, version, labels in on_ranks(ranks, program):
        assert_close(found, expected)
        assert version == 3  # after 3 and 6 steps, and at the end
        assert labels == {cc.I}


@pytest.mark.parametrize("outer", [(0.7, 0.9), (1.0, 0.0)])
@pytest.mark.parametrize("ranks", RANKS)
def test_diloco_equals_the_serial_program(ranks: int, outer: tuple[float, float]) -> None:
    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = make_model()
        inner = optim.AdamW(model.parameters(), lr=0.05)
        with DiLoCo(model, "dp", inner, every=2, outer_lr=outer[0], outer_momentum=outer[1]) as local:
            train(model, local, rank, 6)
        return values(model)

    expected = serial(ranks, OPTIMIZERS["AdamW"], 6, 2, outer)
    for found in on_ranks(ranks, program):
        assert_close(found, expected)


def test_one_local_step_is_a_synchronous_step_with_the_rate_times_the_ranks() -> None:
    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = make_model()
        with LocalSGD(model, "dp", optim.SGD(model.parameters(), lr=0.3), every=1) as local:
            train(model, local, rank, 4)
        synchronous = DataParallel(make_model(), "dp")
        optimizer = optim.SGD(synchronous.parameters(), lr=0.3 / mesh.ranks.size)
        for step in range(4):
            optimizer.zero_grad()
            x, y = batch(rank, step)
            with ag.Tape() as tape:
                loss = cc.all_reduce(cc.declare_partial(nn.cross_entropy(synchronous(x), y), "dp"), "dp", to=cc.I)
            tape.backward(loss)
            optimizer.step()
        return values(model), values(synchronous)

    for local, synchronous in on_ranks(3, program):
        assert_close(local, synchronous)


def test_weights_of_the_mean() -> None:
    weights = [2.0, 0.0, 5.0]

    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = make_model()
        with LocalSGD(model, "dp", optim.SGD(model.parameters(), lr=0.1), every=2, weight=weights[rank]) as local:
            train(model, local, rank, 4)
        return values(model)

    expected = serial(3, OPTIMIZERS["SGD"], 4, 2, weights=weights)
    for found in on_ranks(3, program):
        assert_close(found, expected)


def test_ranks_that_take_different_numbers_of_steps_and_one_without_rows() -> None:
    """They synchronise when asked. A rank without rows has weight 0 and steps without gradients."""

    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = make_model()
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        with LocalSGD(model, "dp", optimizer, every=100) as local:
            train(model, local, rank, 2 * rank)
            local.weight = 2.0 * rank
            own = values(model)
            local.synchronise()
            after = values(model)
        return own, after, local.version

    found = on_ranks(3, program)
    copies = [own for own, _, _ in found]
    expected = [(2 * b + 4 * c) / 6 for _, b, c in zip(*copies, strict=True)]
    for _, after, version in found:
        assert_close(after, expected)
        assert version == 1  # nobody has stepped since, so that the end adds none


def test_float16_and_scalar_parameters() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            self.scale = ag.Parameter(np.float64(1.5))
            self.half = ag.Parameter(np.arange(3, dtype=np.float16))

        def forward(self, x: Any) -> Any:
            return (x * self.scale).sum() + self.half.astype(float).sum()

    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = Scaled()
        with LocalSGD(model, "dp", optim.SGD(model.parameters(), lr=1.0), every=1) as local:
            with ag.Tape() as tape:
                loss = cc.declare_partial(model(np.full(2, rank + 1.0)), "dp")
            tape.backward(loss)
            local.step()
        return model.scale.item(), model.half.numpy().tolist(), model.half.dtype

    for scale, half, dtype in on_ranks(3, program):
        assert scale == 1.5 - 4.0  # the gradients are 2, 4 and 6
        assert half == [-1, 0, 1] and dtype == np.float16


def test_batch_norm_averages_its_statistics() -> None:
    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = nn.Sequential(nn.Linear(2, 3, dtype=float), nn.BatchNorm1d(3, dtype=float))
        with LocalSGD(model, "dp", optim.SGD(model.parameters(), lr=0.1), every=2) as local:
            for step in range(3):
                local.optimizer.zero_grad()
                x = np.random.default_rng((rank, step)).normal(size=(4 + rank, 2))
                with ag.Tape() as tape:
                    loss = cc.declare_partial((model(x) ** 2).sum(), "dp")
                tape.backward(loss)
                local.step()
            own = np.asarray(getattr(model[1].running_mean, "array", model[1].running_mean))
        mean = model[1].running_mean
        model.eval()
        y = model(ag.constant(np.ones((1, 2)))).numpy()
        return own, np.asarray(mean), int(model[1].num_batches_tracked), y

    found = on_ranks(3, program)
    for _, mean, batches, y in found:
        assert np.allclose(mean, sum(own for own, _, _, _ in found) / 3, rtol=1e-12)
        assert batches == 3
        assert np.array_equal(y, found[0][3])


def test_frozen_parameters_are_not_sent() -> None:
    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = make_model()
        model[0].requires_grad_(False)
        optimizer = optim.SGD(model[2].parameters(), lr=0.1)
        sizes = []
        with observing(lambda group, request, started, run: (sizes.append(request), run())[1]):
            with LocalSGD(model, "dp", optimizer, every=2) as local:
                train(model, local, rank, 2)
        return [r.x.size for r in sizes if r.call == "all_reduce"]

    for sizes in on_ranks(2, program):
        assert sizes == [5 * CLASSES + CLASSES + 1, 1]  # the parameters and the weight; whether a rank has stepped


# -- what is sent ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("every", [1, 8])
def test_bytes_are_those_of_the_parameters_every_few_steps(every: int) -> None:
    def program() -> Any:
        with cc.Mesh(dp=-1, algorithm="ring") as mesh:
            axis = mesh.axis("dp")
            model = nn.Linear(64, 64)
            steps = 16
            with LocalSGD(model, "dp", optim.SGD(model.parameters(), lr=0.1), every=every) as local:
                axis.group.traffic.clear()
                for step in range(steps):
                    local.optimizer.zero_grad()
                    with ag.Tape() as tape:
                        x = np.random.default_rng((int(axis.rank), step)).normal(size=(2, 64)).astype(np.float32)
                        loss = cc.declare_partial(model(x).sum(), "dp")
                    tape.backward(loss)
                    local.step()
                return axis.group.traffic.bytes / steps

    whole = 4 * (64 * 64 + 64)
    for sent in cc.run(program, 3):
        assert abs(sent - 2 * 2 / 3 * whole / every) <= 0.01 * sent  # a ring sends 2 (p - 1) / p of the elements


# -- checks ------------------------------------------------------------------------------------------------------------
def test_a_missed_synchronisation_is_named() -> None:
    def program(mesh: cc.Mesh, rank: int) -> None:
        model = make_model()
        with LocalSGD(model, "dp", optim.SGD(model.parameters(), lr=0.1), every=2) as local:
            for step in range(4):
                backward(model, rank, step)
                if not (rank == 1 and step == 3):
                    local.step()

    with pytest.raises(CollectiveMismatch) as error:
        on_ranks(3, program)
    text = str(error.value)
    assert "synchronisation 2 of LocalSGD, every 2 steps" in text and "the end of the block of LocalSGD" in text


def test_a_doubled_synchronisation_is_named() -> None:
    def program(mesh: cc.Mesh, rank: int) -> None:
        model = make_model()
        with LocalSGD(model, "dp", optim.SGD(model.parameters(), lr=0.1), every=2) as local:
            for step in range(4):
                backward(model, rank, step)
                local.step()
                if rank == 0 and step == 1:
                    local.synchronise()

    with pytest.raises(CollectiveMismatch) as error:
        on_ranks(2, program)
    text = str(error.value)
    assert "synchronisation 2 of LocalSGD, as asked" in text and "synchronisation 2 of LocalSGD, every 2 steps" in text


@pytest.mark.parametrize("kind", [LocalSGD, DiLoCo])
def test_a_rank_at_another_version_is_named(kind: type[LocalSGD]) -> None:
    """As after loading a checkpoint of another step on one rank."""

    def program(mesh: cc.Mesh, rank: int) -> None:
        model = make_model()
        with kind(model, "dp", optim.SGD(model.parameters(), lr=0.1), every=1) as local:
            state = local.state_dict()
            state["version"] = 4 + (rank == 2)
            local.load_state_dict(state)
            backward(model, rank, 0)
            local.step()

    with pytest.raises(CollectiveMismatch) as error:
        on_ranks(3, program)
    assert f"synchronisation 5 of {kind.__name__}" in str(error.value)
    assert f"synchronisation 6 of {kind.__name__}" in str(error.value)


def test_copies_that_differ_after_a_synchronisation_are_named() -> None:
    def program(mesh: cc.Mesh, rank: int) -> None:
        model = make_model()
        with LocalSGD(model, "dp", optim.SGD(model.parameters(), lr=0.1), every=1) as local:
            if rank == 1:
                apply = local._apply
                local._apply = lambda means: apply([means[0] + 1e-9, *means[1:]])  # type: ignore[method-assign]
            backward(model, rank, 0)
            local.step()

    with pytest.raises(ReplicaMismatch, match="0.weight after synchronisation 1 of LocalSGD"):
        on_ranks(3, program)


def test_the_step_of_an_optimizer_carries_the_version_of_synchronous_training() -> None:
    """Its number of steps is among the numbers that the ranks compare, also after loading a state."""

    def program(mesh: cc.Mesh, rank: int) -> None:
        model = DataParallel(make_model(), "dp")
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        state = optimizer.state_dict()
        state["steps"] = 7 if rank == 1 else 8
        optimizer.load_state_dict(state)
        x, y = batch(rank, 0)
        with ag.Tape() as tape:
            loss = cc.all_reduce(nn.cross_entropy(model(x), y, reduction="sum"), "dp", to=cc.I)
        tape.backward(loss)
        optimizer.step()

    with pytest.raises(ReplicaMismatch) as error:
        on_ranks(3, program)
    assert "steps of SGD" in str(error.value) and "steps=7" in str(error.value) and "steps=8" in str(error.value)


def test_going_on_synchronously_with_state_of_each_rank_is_refused() -> None:
    def program(mesh: cc.Mesh, rank: int) -> None:
        model = make_model()
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with LocalSGD(model, "dp", optimizer, every=2) as local:
            train(model, local, rank, 2)
        parallel = DataParallel(model, "dp")
        x, y = batch(rank, 0)
        with ag.Tape() as tape:
            loss = cc.all_reduce(nn.cross_entropy(parallel(x), y, reduction="sum"), "dp", to=cc.I)
        tape.backward(loss)
        optimizer.step()

    with pytest.raises(ReplicaMismatch, match="state of SGD"):
        on_ranks(2, program)


# -- mistakes ----------------------------------------------------------------------------------------------------------
def _forgot_declare_partial(model: Any, local: LocalSGD, rank: int) -> None:
    x, y = batch(rank, 0)
    with ag.Tape() as tape:
        loss = nn.cross_entropy(model(x), y)
    tape.backward(loss)


def _uses_data_parallel(model: Any, local: LocalSGD, rank: int) -> None:
    DataParallel(model, "dp")(batch(rank, 0)[0])


def _steps_twice(model: Any, local: LocalSGD, rank: int) -> None:
    backward(model, rank, 0)
    local.optimizer.step()
    local.step()


def _synchronises_inside_a_tape(model: Any, local: LocalSGD, rank: int) -> None:
    with ag.Tape() as tape:
        loss = cc.declare_partial(model(batch(rank, 0)[0]).sum(), "dp")
        local.synchronise()
    tape.backward(loss)


def _enters_again(model: Any, local: LocalSGD, rank: int) -> None:
    with LocalSGD(model, "dp", local.optimizer):
        pass


def _all_weights_are_zero(model: Any, local: LocalSGD, rank: int) -> None:
    local.weight = 0
    local.synchronise()


MISTAKES: dict[str, tuple[Any, type[Exception], str]] = {
    "the loss of a rank is no objective": (_forgot_declare_partial, LayoutError, "Varying"),
    "a model of DataParallel": (_uses_data_parallel, LayoutError, "needed: Invariant"),
    "the optimizer's step beside that of local": (_steps_twice, OptionError, "local.step"),
    "a synchronisation inside a tape": (_synchronises_inside_a_tape, SavedArrayError, "a tape still needs"),
    "a block inside the block": (_enters_again, LayoutError, "the parameter is Varying"),
    "all weights are zero": (_all_weights_are_zero, OptionError, "weight=0 was given on all 2 ranks"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused(mistake: str) -> None:
    make, error, text = MISTAKES[mistake]

    def program(mesh: cc.Mesh, rank: int) -> None:
        model = make_model()
        with LocalSGD(model, "dp", optim.SGD(model.parameters(), lr=0.1), every=2) as local:
            make(model, local, rank)

    with pytest.raises(error, match=text):
        on_ranks(2, program)


def test_arguments() -> None:
    def program(mesh: cc.Mesh, rank: int) -> None:
        model = make_model()
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for wrong, error in (
            (lambda: LocalSGD(model, "dp", optimizer, every=0), OptionError),
            (lambda: LocalSGD(model, "dp", optimizer, weight=-1.0), OptionError),
            (lambda: LocalSGD(model.parameters(), "dp", optimizer), ArgumentError),  # type: ignore[arg-type]
            (lambda: LocalSGD(model, "dp", model), ArgumentError),  # type: ignore[arg-type]
            (lambda: LocalSGD(nn.Linear(2, 2), "dp", optimizer), ArgumentError),
            (lambda: LocalSGD(model, "dp", optimizer).step(), OptionError),
            (lambda: LocalSGD(model, "dp", optimizer).synchronise(), OptionError),
            (lambda: DiLoCo(model, "dp", optimizer, outer_lr=-1.0), OptionError),
        ):
            with pytest.raises(error):
                wrong()
        with pytest.raises(TapeError, match="still needs"), ag.Tape() as tape:
            model(ag.constant(np.ones((1, FEATURES))))
            with LocalSGD(model, "dp", optimizer):
                pass
        del tape

    on_ranks(1, program)


def test_parameters_that_differ_at_the_start_are_refused() -> None:
    def program(mesh: cc.Mesh, rank: int) -> None:
        random.seed(rank)
        model = nn.Linear(2, 2)
        with LocalSGD(model, "dp", optim.SGD(model.parameters(), lr=0.1)):
            pass

    with pytest.raises(ReplicaMismatch, match="weight"):
        on_ranks(2, program)


def test_an_error_inside_the_block_is_the_one_that_is_raised() -> None:
    def program(mesh: cc.Mesh, rank: int) -> None:
        model = make_model()
        with LocalSGD(model, "dp", optim.SGD(model.parameters(), lr=0.1), every=2) as local:
            if rank == 1:
                raise OSError("no data")
            train(model, local, rank, 4)

    with pytest.raises(OSError, match="no data"):
        on_ranks(3, program)


# -- a gradient, a checkpoint ------------------------------------------------------------------------------------------
def test_accumulating_over_microbatches_and_synchronising_in_between() -> None:
    """A synchronisation leaves the gradients alone, which belong to the step that follows."""

    def program(mesh: cc.Mesh, rank: int) -> Any:
        model = make_model()
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        with LocalSGD(model, "dp", optimizer, every=100) as local:
            backward(model, rank, 0)
            first = [p.grad.numpy().copy() for p in model.parameters()]
            local.synchronise()
            assert all(np.array_equal(g, p.grad.numpy()) for g, p in zip(first, model.parameters(), strict=True))
            backward(model, rank, 1)
            twice = [p.grad.numpy().copy() for p in model.parameters()]
            optimizer.zero_grad()
            backward(model, rank, 1)
            second = [p.grad.numpy() for p in model.parameters()]
            return all(np.allclose(a + b, both) for a, b, both in zip(first, second, twice, strict=True))

    assert all(on_ranks(2, program))


@pytest.mark.parametrize("kind", [LocalSGD, DiLoCo])
def test_a_checkpoint_between_synchronisations(kind: type[LocalSGD], tmp_path: Path) -> None:
    def program(mesh: cc.Mesh, rank: int) -> Any:
        def make() -> tuple[nn.Module, LocalSGD]:
            model = make_model()
            return model, kind(model, "dp", optim.AdamW(model.parameters(), lr=0.05), every=3)

        model, local = make()
        path = tmp_path / f"{rank}.npz"
        with local:
            train(model, local, rank, 5)
            nn.save({"model": model, "optimizer": local.optimizer, "local": local}, path)
            train(model, local, rank, range(5, 10))
        again, continued = make()
        with continued:
            nn.load({"model": again, "optimizer": continued.optimizer, "local": continued}, path)
            train(again, continued, rank, range(5, 10))
        assert continued.version == local.version
        return all(np.array_equal(a, b) for a, b in zip(values(model), values(again), strict=True))

    assert all(on_ranks(3, program))
