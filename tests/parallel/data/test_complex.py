"""Complex parameters on several ranks, beside real ones: as pairs of real numbers on one process, and as in torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim
from autograd.errors import ObjectiveError
from autograd.whole import whole_of
from parallel import DataParallel, Trainer, checkpoint, verify

from ...autograd.nn.torch_side import reference
from ...autograd.optim.complex_case import OPTIMIZERS, ROWS, START, STEPS, Mixed, Twin, X, Y, assert_close, train
from ...autograd.optim.test_optim import OPTIMIZERS as TORCHS
from ...collectives.launch import launch_command

pytestmark = pytest.mark.filterwarnings("error::numpy.exceptions.ComplexWarning")

MODES: dict[str, dict[str, Any]] = {
    "one bucket": {}, "small buckets": {"bucket_bytes": 40, "first_bucket_bytes": 16},
    "zero 1": {"zero": 1}, "zero 2": {"zero": 2, "bucket_bytes": 40}, "zero 3": {"zero": 3},
}  # fmt: skip
CLIPS: dict[str, Callable[[Any], Any]] = {
    "": lambda ps: None, "norm": lambda ps: optim.clip_grad_norm_(ps, 0.5),
    "values": lambda ps: optim.clip_grad_value_(ps, 0.1),
}  # fmt: skip


@cache
def formula(name: str, clip: str = "") -> list[list[Any]]:
    return train(Twin(), OPTIMIZERS[name], clip=CLIPS[clip])


def divided(
    make: Callable[[Any], Any], mode: str = "one bucket", steps: int = STEPS, clip: str = "", x: Any = X, y: Any = Y,
    start: Any = START, sign: float = 1, each: Callable[[int, Any, Any], Any] = lambda k, *both: both,
) -> list[list[Any]]:  # fmt: skip
    """The whole values after each step, on this rank of a mesh."""
    with cc.Mesh(dp=-1):
        model = DataParallel(Mixed(start=start), "dp", **MODES[mode])
        optimizer, found = make(model.parameters()), []
        here, target = (cc.shard(ag.constant(a), "dp") for a in (x, y))
        for k in range(steps):
            model, optimizer = each(k, model, optimizer)
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = cc.all_reduce(sign * squares(model, here, target) / ROWS, "dp", to=cc.I)
            tape.backward(loss)
            CLIPS[clip](model.parameters())
            optimizer.step()
            found.append([np.asarray(whole_of(p.array, p.layout, "", "")) for p in model.parameters()])
        return found


def squares(model: Any, x: Any, y: Any) -> Any:
    return (anp.abs(model(x) - y) ** 2).sum()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sixty_steps_of_an_optimizer(name: str, ranks: int) -> None:
    for found in cc.run(lambda: divided(OPTIMIZERS[name]), ranks):
        assert_close(found, formula(name))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name, (_, words) in TORCHS.items() if not words.get("centered")])
def test_sixty_steps_beside_torch(name: str, ranks: int) -> None:
    make, words = TORCHS[name]
    given = reference(f"complex/{name}")
    start, sign = [given[f"start/{i}"] for i in range(3)], -1 if words.get("maximize") else 1
    theirs = [[given[f"value/{step}/{i}"] for i in range(3)] for step in range(STEPS)]
    for found in cc.run(
        lambda: divided(lambda ps: make(ps, **words), x=given["x"], y=given["y"], start=start, sign=sign), ranks
    ):
        assert_close(found, theirs)


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_modes_and_clipping(ranks: int, mode: str, clip: str) -> None:
    for name in ("SGD, momentum", "AdamW", "LAMB"):
        for found in cc.run(lambda name=name: divided(OPTIMIZERS[name], mode, 12, clip), ranks):
            assert_close(found, formula(name, clip)[:12])


def main() -> None:
    """On the ranks of mpiexec."""
    for mode, name, steps in (("one bucket", "AdamW", STEPS), ("zero 1", "SGD, momentum", 12), ("zero 3", "LAMB", 12)):
        assert_close(divided(OPTIMIZERS[name], mode, steps), formula(name)[:steps])
    print("equal")


def test_over_mpi() -> None:
    found = launch_command(["-W", "error::numpy.exceptions.ComplexWarning", "-m", __name__], 3, limit_s=200)
    assert found.code == 0, found.out + found.err
    assert found.out.count("equal") == 3


@pytest.mark.parametrize("mode", ["one bucket", "zero 1", "zero 3"])
@pytest.mark.parametrize("ranks", [(2, 2), (2, 3), (3, 1)])
def test_a_checkpoint_in_the_middle(tmp_path: Path, ranks: tuple[int, int], mode: str) -> None:
    """Other numbers of ranks go on with complex weights and a complex state."""
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    make, before = OPTIMIZERS["Adam"], 8

    def save(k: int, model: Any, optimizer: Any) -> Any:
        if k == before:
            checkpoint.save(tmp_path, {"model": model, "optimizer": optimizer}, k)
        return model, optimizer

    def load(k: int, model: Any, optimizer: Any) -> Any:
        if not k:
            checkpoint.load(tmp_path, {"model": model, "optimizer": optimizer})
        return model, optimizer

    cc.run(lambda: divided(make, mode, before + 1, each=save), ranks[0])
    for found in cc.run(lambda: divided(make, mode, 6, start=[0 * x for x in START], each=load), ranks[1]):
        assert_close(found, formula("Adam")[before : before + 6])


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("zero", [0, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_captured_step_has_the_same_bits(ranks: int, zero: int, clip: str) -> None:
    def program(name: str, wrap: Any) -> Any:
        with cc.Mesh(dp=-1):
            model = DataParallel(Mixed(), "dp", zero=zero)
            optimizer = OPTIMIZERS[name](model.parameters())

            def step(x: Any, y: Any) -> Any:
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    loss = cc.all_reduce(squares(model, x, y) / ROWS, "dp", to=cc.I)
                tape.backward(loss)
                CLIPS[clip](model.parameters())
                optimizer.step()
                return loss

            step = wrap(step)
            x, y = (cc.shard(ag.constant(a), "dp") for a in (X, Y))
            for _ in range(10):
                step(x, y)
            return [np.array(p.numpy()) for p in model.parameters()]

    for name in ("SGD, momentum", "Adam"):
        pairs = zip(cc.run(program, ranks, name, ag.capture), cc.run(program, ranks, name, lambda f: f), strict=True)
        for captured, plain in pairs:
            for a, b in zip(captured, plain, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_microbatches(ranks: int, zero: int) -> None:
    def program() -> Any:
        with cc.Mesh(dp=-1):
            model = DataParallel(Mixed(), "dp", zero=zero)
            optimizer, found = OPTIMIZERS["Adam"](model.parameters()), []
            for _ in range(6):
                optimizer.zero_grad()
                with model.accumulate():
                    for part in range(3):
                        x, y = (cc.shard(ag.constant(a[part::3]), "dp") for a in (X, Y))
                        with ag.Tape() as tape:
                            loss = cc.all_reduce(squares(model, x, y) / ROWS, "dp", to=cc.I)
                        tape.backward(loss)
                optimizer.step()
                found.append([np.asarray(whole_of(p.array, p.layout, "", "")) for p in model.parameters()])
            return found

    for found in cc.run(program, ranks):
        assert_close(found, formula("Adam")[:6])


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_parameters_of_several_dtypes_keep_theirs(zero: int) -> None:
    """A gather was in the dtype of the first parameter: float64 weights lost half of their digits."""

    class Several(nn.Module):
        def __init__(self) -> None:
            self.a = ag.Parameter(np.ones(4, "float32"))
            self.b, self.c = ag.Parameter(np.full(4, 1 / 3)), ag.Parameter(np.full(4, 2 / 3 + 1j / 7))

        def forward(self, x: Any) -> Any:
            return x * self.a.astype(float) * self.b * self.c

    def program() -> Any:
        with cc.Mesh(dp=-1):
            model = DataParallel(Several(), "dp", zero=zero)
            with ag.no_grad():
                return model(ag.constant(np.ones(4))).numpy()

    for found in cc.run(program, 2):
        np.testing.assert_array_equal(found, np.full(4, 1 / 3 * (2 / 3 + 1j / 7)))


class Layer(nn.Module):
    def __init__(self, i: int, o: int, seed: int):
        rng = np.random.default_rng(seed)
        w = 0.5 * (rng.standard_normal((i, o)) + 1j * rng.standard_normal((i, o)))
        self.w, self.b = ag.Parameter(w), ag.Parameter(rng.standard_normal(o))

    def forward(self, x: Any) -> Any:
        y = x @ self.w * self.b
        return y / (1 + anp.abs(y) ** 2)


def layers() -> nn.Sequential:
    return nn.Sequential(Layer(3, 4, 1), Layer(4, 4, 2), Layer(4, 2, 3))


class Squares(nn.Module):
    reduction = "sum"

    def forward(self, y: Any, target: Any) -> Any:
        return (anp.abs(y - target) ** 2).sum()


MESHES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "dp 2": ({"dp": 2}, {}), "dp 3, zero 2": ({"dp": 3}, {"zero": 2}), "pp 2": ({"pp": 2}, {"microbatches": 2}),
    "dp 2, pp 2, zero 3": ({"dp": 2, "pp": 2}, {"zero": 3, "microbatches": 3}), "clip": ({"dp": 2}, {"clip": 0.1}),
    "same bits": ({"dp": 3}, {"bits": "same", "microbatches": 6}),
}  # fmt: skip


@pytest.mark.parametrize("name", MESHES)
def test_a_trainer(name: str) -> None:
    sizes, options = MESHES[name]

    def program(sizes: dict[str, int]) -> Any:
        trainer = Trainer(
            layers, Squares(), cc.Mesh.fit(**sizes), optimizer=lambda ps: optim.AdamW(ps, lr=0.03), **options
        )
        losses = [trainer.step(X, Y) for _ in range(6)]
        return losses, trainer.verify(X, Y).passed

    (alone, _), = cc.run(lambda: program({}), 1)
    assert alone[-1] < alone[0]
    for losses, passed in cc.run(lambda: program(sizes), int(np.prod(list(sizes.values())))):
        assert passed
        np.testing.assert_allclose(losses, alone, rtol=1e-12)


@pytest.mark.parametrize("sizes", [{"dp": 1}, {"dp": 2}, {"pp": 2}])
def test_a_complex_loss_of_a_trainer_is_refused(sizes: dict[str, int]) -> None:
    class Complex(Squares):
        def forward(self, y: Any, target: Any) -> Any:
            return ((y - target) ** 2).sum()

    def program() -> None:
        Trainer(layers, Complex(), cc.Mesh.fit(**sizes), optimizer=optim.SGD).step(X, Y)

    with pytest.raises(ObjectiveError, match=r"complex128(.|\n)*fix: np\.abs"):
        cc.run(program, int(np.prod(list(sizes.values()))))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("right", [True, False])
def test_verify_sees_both_parts(right: bool, dtype: str) -> None:
    def program() -> Any:
        def loss(model: Any, x: Any, y: Any) -> Any:
            found = model(x)
            if not right and ag.engine.state.state.mesh is not None:
                found = found.conj()
            return (anp.abs(found - y) ** 2).sum() / ROWS

        with cc.Mesh(dp=-1):
            model = DataParallel(layers().to(dtype=dtype), "dp")
            x, y = (cc.shard(ag.constant(a), "dp") for a in (X, Y))
            return verify(model, loss, x, y).passed

    assert cc.run(program, 3) == [right] * 3


if __name__ == "__main__":
    main()
