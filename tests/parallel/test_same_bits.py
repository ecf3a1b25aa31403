"""``Trainer(bits="same")``: one SHA-256 of parameters, optimizer state, losses and norms on any number of ranks."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives as cc
from autograd import nn, optim, random
from autograd.errors import OptionError
from collectives.algorithms.reproducible import StreamedSum, sum_tree
from parallel import Axes, Column, Recompute, Ring, Trainer
from parallel.approximate.low_rank import PowerSGD
from parallel.data import gradient_tree
from parallel.data.settings import Zero
from parallel.pipeline import run
from parallel.pipeline.randomness import seed_of_layers
from parallel.runs import environment_of_bits

from ..collectives.launch import launch_command

ROWS, MICROBATCHES = 53, 8
OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
}
Mesh = tuple[int, int, int]
"""The sizes of dp and pp, and the stage of ZeRO."""


def model(dtype: Any, *more: nn.Module) -> nn.Sequential:
    key = random.Key(0)
    first, second, third = (key.fold(str(i)) for i in range(3))
    return nn.Sequential(
        nn.Linear(37, 50, key=first, dtype=dtype), nn.Tanh(), nn.Dropout(0.3),
        nn.Linear(50, 50, key=second, dtype=dtype), nn.LayerNorm(50, dtype=dtype), *more,
        nn.GELU(), nn.Linear(50, 7, key=third, dtype=dtype),
    )  # fmt: skip


def batch(step: int, dtype: Any) -> Any:
    rng = np.random.default_rng(step)
    return rng.standard_normal((ROWS, 37)).astype(dtype), rng.integers(0, 7, ROWS)


def trainer_on(mesh: Mesh, dtype: Any = np.float64, optimizer: str = "adamw", **options: Any) -> Trainer:
    dp, pp, zero = mesh
    given: dict[str, Any] = {"bits": "same", "clip": 0.5, "seed": 5, "microbatches": MICROBATCHES, "zero": zero}
    return Trainer(
        lambda: model(dtype), nn.CrossEntropyLoss(reduction="sum"), cc.Mesh.fit(dp=dp, pp=pp),
        optimizer=OPTIMIZERS[optimizer], **given | options,
    )  # fmt: skip


def digest(trainer: Trainer, numbers: Sequence[float]) -> str:
    """Of the whole parameters and the whole state of the optimizer, by names, and of losses and norms."""
    found: dict[str, bytes] = {}
    for stage in trainer.state_dict()["stages"]:
        state = stage["optimizer"]
        (names,) = state["names"]
        found.update((name, a.tobytes()) for name, a in stage["model"].items() if isinstance(a, np.ndarray))
        for kind in {"first", "second", "velocity"} & set(state):
            found.update((f"{kind} {name}", a.tobytes()) for name, a in zip(names, state[kind], strict=True))
    assert len(found) in (16, 24)  # eight parameters
    text = hashlib.sha256(repr(list(numbers)).encode())
    for path in sorted(found):
        text.update(path.encode() + found[path])
    return text.hexdigest()


def trained(mesh: Mesh, dtype: Any = np.float64, steps: int = 3, **options: Any) -> str:
    trainer = trainer_on(mesh, dtype, **options)
    numbers: list[Any] = []
    for step in range(steps):
        numbers += [trainer.step(*batch(step, dtype)), trainer.norm]
    return digest(trainer, [*numbers, trainer.evaluate(*batch(0, dtype))])


def digests(meshes: Sequence[Mesh], **options: Any) -> set[str]:
    return {sha for mesh in meshes for sha in cc.run(lambda m=mesh: trained(m, **options), mesh[0] * mesh[1])}


ONE = (1, 1, 0)
FEW: list[Mesh] = [ONE, (2, 1, 1), (3, 1, 2), (2, 2, 3), (8, 1, 0)]
ALL: list[Mesh] = [each for each in product((1, 2, 3, 4, 5, 6, 8), (1, 2, 3), range(4)) if each[0] * each[1] <= 8]


@pytest.mark.parametrize(("optimizer", "clip"), list(product(OPTIMIZERS, (None, 0.5))))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_digest_on_all_meshes(dtype: Any, optimizer: str, clip: float | None) -> None:
    assert len(digests(FEW, dtype=dtype, optimizer=optimizer, clip=clip)) == 1


@pytest.mark.full
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_digest_on_all_meshes_of_eight_ranks(dtype: Any, optimizer: str) -> None:
    assert len(digests(ALL, dtype=dtype, optimizer=optimizer)) == 1


def test_schedules_and_recomputed_layers_change_no_bit() -> None:
    plan = {"[0-3]": Recompute()}
    found = digests([ONE, (3, 1, 0)], plan=plan)
    for schedule in ("gpipe", "interleaved", "zb-h1", "zb-v"):
        found |= digests([(2, 2, 0)], schedule=schedule, plan=plan)
    assert len(found) == 1


def test_more_ranks_than_microbatches() -> None:
    assert len(digests([ONE, (4, 1, 0), (4, 2, 2)], microbatches=3)) == 1


def test_a_run_goes_on_with_the_same_bits_on_another_mesh(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"

    def begin() -> None:
        trainer = trainer_on((2, 1, 2))
        for step in range(2):
            trainer.step(*batch(step, float))
        nn.save({"trainer": trainer}, path)

    def go_on() -> str:
        trainer = trainer_on((3, 1, 0))
        nn.load({"trainer": trainer}, path)
        return digest(trainer, [trainer.step(*batch(2, float))])

    def at_once() -> str:
        trainer = trainer_on(ONE)
        return digest(trainer, [trainer.step(*batch(step, float)) for step in range(3)][-1:])

    cc.run(begin, 2)
    assert set(cc.run(go_on, 3)) == set(cc.run(at_once, 1))


def test_gradients_are_those_of_one_process() -> None:
    for mesh in ((3, 1, 2), (2, 2, 0)):
        for report in cc.run(lambda m=mesh: trainer_on(m).verify(*batch(0, float)), mesh[0] * mesh[1]):
            assert report.largest < 1e-12


def test_tied_parameters_of_one_stage() -> None:
    def program(dp: int) -> tuple[float, float]:
        def tied() -> nn.Sequential:
            layers = model(float, nn.Linear(50, 50, dtype=float))
            layers[5].weight = layers[3].weight
            layers[5].bias = layers[3].bias
            return layers

        trainer = Trainer(
            tied, nn.CrossEntropyLoss(reduction="sum"), cc.Mesh.fit(dp=dp), optimizer=OPTIMIZERS["adamw"], bits="same",
            microbatches=4,
        )  # fmt: skip
        return trainer.verify(*batch(0, float)).largest, trainer.step(*batch(0, float))

    found = [each for dp in (1, 3) for each in cc.run(lambda n=dp: program(n), dp)]
    assert max(largest for largest, _ in found) < 1e-12
    assert len({loss for _, loss in found}) == 1


# -- planted faults ------------------------------------------------------------------------------------------------
def test_the_usual_trainer_has_other_bits_on_each_mesh() -> None:
    assert len(digests([ONE, (2, 1, 0), (3, 1, 0)], bits=None)) == 3


class _PlainSum(StreamedSum):
    """The sum in the order of each rank's microbatches, then of the ranks."""

    def add(self, index: int, x: Any) -> None:
        self.nodes[0, 0] = self.nodes[0, 0] + x if self.nodes else x

    def total(self, group: Any, indices: Any) -> Any:
        total = self.nodes.pop((0, 0))
        return total if group is None else group.base.all_reduce(total)


def test_a_plain_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_tree, "StreamedSum", _PlainSum)
    assert len(digests([ONE, (2, 1, 0), (3, 1, 0)])) == 3


def test_random_numbers_by_the_place_on_a_rank_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_place(seed: int, step: int, number: int) -> int:
        world = cc.world()
        return seed_of_layers(seed, step, number % (MICROBATCHES // int(world.size)))

    monkeypatch.setattr(run, "seed_of_layers", by_place)
    assert len(digests([ONE, (2, 1, 0), (4, 1, 0)])) == 3


# -- the streamed sum ----------------------------------------------------------------------------------------------
class _Counted(StreamedSum):
    made = 0

    def buffer(self) -> Any:
        self.made += not self._spare
        return super().buffer()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 16, 31])
def test_a_streamed_sum_holds_few_arrays_and_adds_as_the_tree(count: int) -> None:
    addends = np.random.default_rng(count).standard_normal((count, 5)).astype(np.float32)
    total = _Counted(count, 5, np.float32)
    for index, x in enumerate(addends):
        flat = total.buffer()
        flat[:] = x
        total.add(index, flat)
    assert total.made <= math.ceil(math.log2(count)) + 1
    (expected,) = sum_tree({(0, index): x for index, x in enumerate(addends)}, count).values()
    assert total.total(None, [range(count)]).tobytes() == expected.tobytes()


# -- refusals ------------------------------------------------------------------------------------------------------
def refused(sizes: dict[str, int], *more: nn.Module, **options: Any) -> str:
    def program() -> str:
        with pytest.raises(OptionError) as caught:
            Trainer(
                lambda: model(float, *more), nn.CrossEntropyLoss(reduction="sum"), cc.Mesh.fit(**sizes),
                **{"optimizer": OPTIMIZERS["adamw"], "bits": "same", "microbatches": 4} | options,
            )  # fmt: skip
        return str(caught.value)

    return cc.run(program, math.prod(sizes.values()))[0]


@pytest.mark.parametrize(("sizes", "options", "says"), [
    ({"dp": 2}, {"bits": "alike"}, "needed: 'same', or None"),
    ({"tp": 2}, {"plan": {"0": Column("tp")}}, "axis 'tp' of 2 ranks divides 0 of the plan"),
    ({"cp": 2}, {"plan": {"*.x": Ring("cp")}}, "axis 'cp' of 2 ranks divides"),
    ({"cp": 2}, {}, "axis 'cp' of 2 ranks divides neither rows nor layers"),
    ({"dp": 2}, {"reduction": PowerSGD(1)}, "reduction=PowerSGD"),
    ({"dp": 2}, {"zero": Zero(1, replicate="hosts")}, "replicate='hosts'"),
    ({"dp": 2}, {"zero": 1, "optimizer": lambda p: optim.LAMB(p, lr=0.1)}, "LAMB, which is not known to treat"),
], ids=["value", "tp", "cp", "idle", "reduction", "replicate", "lamb"])  # fmt: skip
def test_refusals(sizes: dict[str, int], options: dict[str, Any], says: str) -> None:
    text = refused(sizes, **options)
    assert says in text
    assert "bits=" in text


def test_running_statistics_are_refused() -> None:
    assert "(BatchNorm1d) has running statistics" in refused({"dp": 2}, nn.BatchNorm1d(50, dtype=float))


def test_own_names_of_axes() -> None:
    def program() -> float:
        trainer = Trainer(
            lambda: model(float), nn.CrossEntropyLoss(reduction="sum"), cc.Mesh(hosts=2, gpus=2), bits="same",
            optimizer=OPTIMIZERS["adamw"], microbatches=4, axes=Axes(batch=("hosts", "gpus")),
        )  # fmt: skip
        return trainer.step(*batch(0, float))

    assert len(set(cc.run(program, 4))) == 1


def test_the_environment_of_bits() -> None:
    found = environment_of_bits()
    assert json.loads(json.dumps(found)) == found
    assert found["numpy"] == np.__version__
    assert (found["blas_kernel"] is None) == (found["blas_threads"] is None)


# -- over MPI ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [2, 3])
def test_over_mpi(ranks: int) -> None:
    found = launch_command(["-m", __name__], ranks, limit_s=100)
    assert found.code == 0, found.out + found.err
    assert set(found.out.split()) == digests([ONE])


if __name__ == "__main__":
    size = int(cc.world().size)
    shas = [trained((size, 1, 0)), trained((size, 1, 3)), trained((1, size, 0))]
    if int(cc.world().rank) == 0:
        print(*shas, sep="\n")
