"""Everything that changes the next step is state: runs that are saved, loaded into fresh objects and go on, bitwise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
import parallel
from autograd import data, nn, optim, random
from autograd.errors import OptionError, RingtapeError, ShapeError
from autograd.optim import schedules
from parallel import (
    CompressedAdam,
    DataParallel,
    DiLoCo,
    Float16,
    Int8,
    LocalSGD,
    NoiseScale,
    OneBit,
    ParameterServer,
    PowerSGD,
    RandomK,
    TopK,
    Trainer,
)
from parallel.pipeline import Pipeline
from tests.collectives.launch import launch_command

from ..on_mesh import on

ROWS = np.random.default_rng(0).standard_normal((30, 6))
LABELS = (ROWS.sum(1) > 0).astype(int)


def body(dtype: Any = float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8, dtype=dtype), nn.Dropout(0.2), nn.Linear(8, 2, dtype=dtype))


class Run:
    """A run: `objects` are saved and loaded, `step` returns what is compared after each step."""

    own_file = False  # whether each rank has a file of its own
    objects: dict[str, Any]

    def __init__(self, mesh: cc.Mesh):
        self.mesh = mesh
        self.taken = 0

    def block(self) -> Any:
        return ExitStack()

    def part(self, k: int) -> Any:
        """This rank's rows and labels of the k-th batch."""
        rows = np.arange(7) + 5 * k
        mine = np.array_split(rows % 30, self.mesh.ranks.size)[int(self.mesh.ranks.rank)]
        x = cc.from_local(ROWS[mine], {"dp": cc.Shard(0)})
        return x, cc.from_local(LABELS[mine], {"dp": cc.Shard(0)})

    def step(self, k: int) -> Any:
        raise NotImplementedError


class Parallel(Run):
    def __init__(self, mesh: cc.Mesh, make: Callable[[Any, Any], Any], reduction: Any = None, zero: int = 0,
                 dtype: Any = float, is_reversed: bool = False):  # fmt: skip
        super().__init__(mesh)
        self.model = DataParallel(body(dtype), "dp", reduction=reduction, zero=zero, bucket_bytes=200)
        self.reduction = reduction
        self.optimizer = make(self.model.parameters(), reduction)
        self.objects = {"model": self.model, "optimizer": self.optimizer, "random": random}
        if is_reversed:
            self.objects = dict(reversed(self.objects.items()))
        self.dtype = dtype

    def step(self, k: int) -> Any:
        x, y = self.part(k)
        self.optimizer.zero_grad()
        with ag.Tape() as tape:
            rows = nn.cross_entropy(self.model(x.astype(self.dtype)), y, reduction="none").astype(float).sum()
            loss = cc.all_reduce(rows, "dp", to=cc.I) / y.global_shape[0]
            scaled = self.optimizer.scale(loss) if isinstance(self.optimizer, optim.MasterWeights) else loss
        tape.backward(scaled)
        noise = None
        if isinstance(self.reduction, NoiseScale):
            self.reduction.update(x.shape[0], x.global_shape[0])
            noise = repr(self.reduction)
        self.optimizer.step()
        return loss.item(), noise, {name: p.numpy().copy() for name, p in self.model.named_parameters()}


class Loaded(Parallel):
    """With a loader that shuffles, running averages, and groups whose rates follow schedules."""

    def __init__(self, mesh: cc.Mesh):
        super().__init__(mesh, lambda params, _: optim.AdamW(
            [{"params": params[:1], "lr": schedules.exponential_lr(0.1, 0.7)}, {"params": params[1:]}],
            lr=schedules.one_cycle_lr(0.05, 12)))  # fmt: skip
        self.loader = data.DataLoader(data.TensorDataset(ROWS, LABELS), 8, shuffle=True, axis="dp")
        self.objects["loader"] = self.loader
        self.batches: Iterator[Any] = iter(())

    def part(self, k: int) -> Any:
        while (batch := next(self.batches, None)) is None:
            self.batches = iter(self.loader)
        return batch


class Local(Run):
    own_file = True

    def __init__(self, mesh: cc.Mesh, kind: Any, **options: Any):
        super().__init__(mesh)
        self.model = body()
        self.optimizer = optim.AdamW(self.model.parameters(), lr=0.05)
        self.local = kind(self.model, "dp", self.optimizer, every=2, **options)
        self.objects = {"model": self.model, "optimizer": self.optimizer, "local": self.local, "random": random}

    def block(self) -> Any:
        return self.local

    def step(self, k: int) -> Any:
        x, y = self.part(k)
        self.optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = nn.cross_entropy(self.model(x), y, reduction="sum") / 7
        tape.backward(loss)
        self.local.step()
        return {name: p.numpy().copy() for name, p in self.model.named_parameters()}


class Served(Run):
    """A parameter server: saved between two blocks."""

    own_file = True

    def __init__(self, mesh: cc.Mesh):
        super().__init__(mesh)
        self.model = nn.Linear(6, 2, dtype=float)
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.objects = {"model": self.model, "optimizer": self.optimizer}

    def step(self, k: int) -> Any:
        ranks = self.mesh.ranks.size
        turns = [rank for _ in range(2) for rank in range(ranks) for _ in range(2)]
        x, y = self.part(k)
        with ParameterServer(self.model, "dp", self.optimizer, script=turns) as server:
            for _ in range(2):
                server.read()
                with ag.Tape() as tape:
                    loss = nn.cross_entropy(self.model(x), y, reduction="sum") / 7
                tape.backward(loss)
                server.push()
        return {name: p.numpy().copy() for name, p in self.model.named_parameters()}


class Staged(Run):
    own_file = True

    def __init__(self, mesh: cc.Mesh):
        super().__init__(mesh)
        layers = [layer for _ in range(3) for layer in (nn.Linear(6, 6, dtype=float), nn.Dropout(0.3))]
        self.pipeline = Pipeline(layers, nn.MSELoss(reduction="sum"), axis="dp", microbatches=3)
        self.optimizer = optim.Adam(self.pipeline.parameters(), lr=0.05)
        self.objects = {"pipeline": self.pipeline, "optimizer": self.optimizer}

    def step(self, k: int) -> Any:
        self.optimizer.zero_grad()
        loss = self.pipeline.step(ROWS[k : k + 9], ROWS[k + 1 : k + 10], scale=1 / 9)
        self.optimizer.step()
        return loss, {name: p.numpy().copy() for name, p in self.pipeline.named_parameters()}


class Trained(Run):
    def __init__(self, mesh: cc.Mesh, axis: str, zero: int = 0):
        super().__init__(mesh)
        plan = {"0": parallel.Column("tp"), "2": parallel.Row("tp")}
        model = lambda: nn.Sequential(*[x for i in range(2) for x in (
            nn.Linear(6, 12, key=random.Key(i, "a"), dtype=float), nn.Dropout(0.2),
            nn.Linear(12, 6, key=random.Key(i, "b"), dtype=float))])  # fmt: skip
        self.trainer = Trainer(
            model, nn.MSELoss(reduction="sum"), cc.Mesh.fit(**{axis: mesh.ranks.size}), plan if axis == "tp" else None,
            optimizer=lambda params: optim.Adam(params, lr=0.05), microbatches=2, zero=zero, clip=1.0,
        )  # fmt: skip
        self.objects = {"trainer": self.trainer}

    def step(self, k: int) -> Any:
        loss = self.trainer.step(ROWS[k : k + 9], ROWS[k + 1 : k + 10])
        return loss, {name: p.numpy().copy() for name, p in self.trainer.parameters.items()}


def adam(params: Any, _: Any) -> Any:
    return optim.Adam(params, lr=0.05)


OPTIMIZERS: dict[str, Callable[[Any, Any], Any]] = {
    "SGD": lambda p, _: optim.SGD(p, lr=0.05),
    "momentum": lambda p, _: optim.SGD(p, lr=0.05, momentum=0.9),
    "nesterov": lambda p, _: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": adam,
    "Adagrad": lambda p, _: optim.Adagrad(p, lr=0.05, lr_decay=0.1),
    "RMSprop": lambda p, _: optim.RMSprop(p, lr=0.05, centered=True, momentum=0.5),
    "LARS": lambda p, _: optim.LARS(p, lr=0.5),
    "LAMB": lambda p, _: optim.LAMB(p, lr=0.05),
    "Offload": lambda p, _: optim.Offload(optim.AdamW, p, lr=0.05),
    "scheduled": lambda p, _: optim.SGD(p, lr=schedules.warmup_cosine(0.1, 2, 8), momentum=0.9),
}  # fmt: skip
REDUCTIONS: dict[str, Callable[[], Any]] = {
    "Float16": lambda: Float16(), "Int8": lambda: Int8(block=4), "OneBit": lambda: OneBit(block=4, start_step=1),
    "OneBit momentum": lambda: OneBit(block=4, momentum=0.9, start_step=2),
    "TopK": lambda: TopK(0.2, smallest=2), "TopK momentum": lambda: TopK(0.2, momentum=0.8, smallest=2, start_step=2),
    "RandomK": lambda: RandomK(0.2, smallest=2), "PowerSGD": lambda: PowerSGD(1),
    "NoiseScale": lambda: NoiseScale(), "NoiseScale of PowerSGD": lambda: NoiseScale(PowerSGD(1, start_step=2)),
}  # fmt: skip
RUNS: dict[str, Callable[[cc.Mesh], Run]] = {
    **{name: lambda mesh, make=make: Parallel(mesh, make) for name, make in OPTIMIZERS.items()},
    **{name: lambda mesh, make=make: Parallel(mesh, adam, make()) for name, make in REDUCTIONS.items()},
    **{f"zero {n}": lambda mesh, n=n: Parallel(mesh, adam, zero=n) for n in (1, 2, 3)},
    "CompressedAdam": lambda mesh: Parallel(
        mesh, lambda p, c: CompressedAdam(p, c, lr=0.05), OneBit(momentum=0.9, block=4, start_step=2)),
    **{f"MasterWeights{' first' * first}": lambda mesh, first=first: Parallel(mesh, lambda p, _: optim.MasterWeights(
        optim.Adam, p, lr=0.05, scaler=optim.LossScaler(2.0**10, growth_interval=2)), dtype="float16",
        is_reversed=first) for first in (False, True)},
    "loader": Loaded,
    "LocalSGD": lambda mesh: Local(mesh, LocalSGD), "DiLoCo": lambda mesh: Local(mesh, DiLoCo, outer_lr=0.5),
    "ParameterServer": Served, "Pipeline": Staged,
    **{f"Trainer {axis}": lambda mesh, axis=axis: Trained(mesh, axis) for axis in ("dp", "tp", "pp")},
    "Trainer zero": lambda mesh: Trained(mesh, "dp", 3),
}  # fmt: skip


def made(name: str, mesh: cc.Mesh, seed: int = 0) -> Run:
    random.seed(seed)
    return RUNS[name](mesh)


def train(name: str, ranks: int, path: Path, before: int, after: int, lacks: tuple[str, ...] = ()) -> list[Any]:
    """What `after` steps compute, after `before` ones of a run that was saved and loaded into fresh objects."""

    def first(mesh: cc.Mesh) -> None:
        run = made(name, mesh)
        with run.block():
            for k in range(before):
                run.step(k)
            rank = int(mesh.ranks.rank)
            nn.save({key: x for key, x in run.objects.items() if key not in lacks},
                    path / (f"{rank}.npz" if run.own_file else "run.npz"))  # fmt: skip

    def second(mesh: cc.Mesh) -> list[Any]:
        run = made(name, mesh, 5)  # other weights, and another seed, which the file replaces
        with run.block():
            rank = int(mesh.ranks.rank)
            nn.load({key: x for key, x in run.objects.items() if key not in lacks},
                    path / (f"{rank}.npz" if run.own_file else "run.npz"))  # fmt: skip
            return [run.step(before + k) for k in range(after)]

    on(ranks, first)
    return on(ranks, second)


def uninterrupted(name: str, ranks: int, before: int, after: int) -> list[Any]:
    def program(mesh: cc.Mesh) -> list[Any]:
        run = made(name, mesh)
        with run.block():
            return [run.step(k) for k in range(before + after)][before:]

    return on(ranks, program)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(x, b[key]) for key, x in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(np.array_equal(a, b, equal_nan=True)) if isinstance(a, np.ndarray) else bool(a == b)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_bitwise(tmp_path: Path, name: str, ranks: int) -> None:
    right = uninterrupted(name, ranks, 3, 3)
    found = train(name, ranks, tmp_path, 3, 3)
    assert same(found, right)


@pytest.mark.parametrize("name", ["OneBit", "TopK", "PowerSGD", "NoiseScale of PowerSGD"])
def test_a_run_without_the_memory_of_its_reduction_is_another_one(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DataParallel, "attached", lambda self: iter(()))
    assert not same(train(name, 2, tmp_path, 3, 3), uninterrupted(name, 2, 3, 3))


def test_every_class_with_a_state_has_a_run() -> None:
    seen: set[type] = set()

    def program(mesh: cc.Mesh) -> None:
        for name in RUNS:
            run = made(name, mesh)
            held = [*run.objects.values(), getattr(run, "reduction", None), getattr(run, "local", None)]
            for x in held:
                for part in (x, getattr(x, "scaler", None), getattr(x, "optimizer", None)):
                    seen.update(type(part).__mro__)

    on(1, program)
    public = [x for package in (optim, data, nn, parallel, cc) for x in vars(package).values()]
    stateful = {x for x in public if inspect.isclass(x) and hasattr(x, "state_dict")}
    missing = {
        x for x in stateful - seen if not issubclass(x, nn.Module) or {"attached", "state_dict"} & vars(x).keys()
    }
    assert not missing and len(stateful) > 20, missing


def test_a_reduction_alone_is_an_object_of_a_file(tmp_path: Path) -> None:
    """It used to be a TypeError."""

    def program(mesh: cc.Mesh) -> None:
        run = made("TopK", mesh)
        assert isinstance(run, Parallel)
        nn.save({"r": TopK(0.1)}, tmp_path / "empty.npz")
        for k in range(2):
            run.step(k)
        nn.save({"r": run.reduction}, tmp_path / "r.npz")
        nn.save(run.model, tmp_path / "model.npz")  # of one module, too
        other = TopK(0.2, smallest=2)
        nn.load({"r": other}, tmp_path / "r.npz")
        mine = made("TopK", mesh, 3)
        assert isinstance(mine, Parallel)
        nn.load(mine.model, tmp_path / "model.npz")
        for found in (other, mine.reduction):
            assert same(found.state.own(), run.reduction.state.own()) and found.state.own()["residual"]
        nn.load({"r": other}, tmp_path / "empty.npz")
        assert not other.state.steps and not any(other.state.slots.values())
        plain = body()
        nn.load(plain, tmp_path / "model.npz")  # the model without its reduction, to use it
        assert same(plain.state_dict(), run.model.state_dict())
        with pytest.raises(OptionError, match=r"the state of 'TopK' was given.*same method"):
            nn.load({"r": PowerSGD(1)}, tmp_path / "r.npz")
        assert not any(x.is_part for x in nn.contents(tmp_path / "model.npz").values())

    on(3, program)


def test_memory_on_another_number_of_ranks_keeps_its_sum_and_other_meshes_are_refused(tmp_path: Path) -> None:
    def summed(mesh: cc.Mesh, reduction: Any) -> Any:
        return reduction.state_dict(mesh.axis("dp").group)["residual"]

    def begin(mesh: cc.Mesh) -> Any:
        run = made("Int8", mesh)
        assert isinstance(run, Parallel)
        run.step(0)
        nn.save(run.objects, tmp_path / "run.npz")
        assert run.reduction.state.pieces or mesh.ranks.size == 1
        return summed(mesh, run.reduction)

    def go_on(mesh: cc.Mesh) -> Any:
        run = made("Int8", mesh, 2)
        assert isinstance(run, Parallel)
        nn.load(run.objects, tmp_path / "run.npz")
        found = summed(mesh, run.reduction)
        run.step(1)
        return found

    right = on(3, begin)[0]
    for ranks in (1, 2, 4):
        for found in on(ranks, go_on):
            assert found.keys() == right.keys()
            for name, x in found.items():
                np.testing.assert_allclose(x, right[name], atol=1e-14)

    def refused() -> str:
        with cc.Mesh(tp=2, dp=2):
            model = DataParallel(body(), "dp", reduction=Int8(block=4))
            before = model.state_dict()
            with pytest.raises(OptionError, match=r"'dp': 3.*the mesh is .'tp': 2, 'dp': 2"):
                nn.load({"model": model}, tmp_path / "run.npz")
            return str(same(model.state_dict(), before))

    assert cc.run(refused, 4) == ["True"] * 4


def test_the_memory_of_tensor_parallel_ranks_is_their_own(tmp_path: Path) -> None:
    """The file of the first rank has that of all: along tp they have other parts of a parameter."""

    def program() -> Any:
        with cc.Mesh(tp=2, dp=2) as mesh:
            rank = int(mesh.ranks.rank)
            model = DataParallel(nn.Linear(6, 4, dtype=float), "dp", reduction=NoiseScale(PowerSGD(1)))
            reduction = model._buckets["reduction"]
            reduction._sums, reduction._weight = np.full(2, 1.0 + rank), 1.0
            reduction.reduction.state.steps = {"weight": 1}
            reduction.reduction.state.slots["residual"]["weight"] = np.full(24, 1.0 + rank)
            nn.save(model, tmp_path / "model.npz")
            other = DataParallel(nn.Linear(6, 4, dtype=float), "dp", reduction=NoiseScale(PowerSGD(1)))
            nn.load(other, tmp_path / "model.npz")
            found = other._buckets["reduction"]
            return found._sums.tolist(), found.reduction.state.slots["residual"]["weight"].tolist()

    assert cc.run(program, 4) == [([1.0 + r] * 2, [1.0 + r] * 24) for r in range(4)]


class Own:
    """An object of a program, which may refuse its state."""

    def __init__(self, fails: bool = False):
        self.value, self.fails = 0, fails

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]
        if self.fails and self.value:
            raise ZeroDivisionError("No such file")


@pytest.mark.parametrize("failing", [0, 2])
@pytest.mark.parametrize("fault", ["file", "own object"])
def test_a_failure_on_one_rank_leaves_all_unchanged(tmp_path: Path, failing: int, fault: str) -> None:
    def begin(mesh: cc.Mesh) -> None:
        run = made("momentum", mesh)
        run.step(0)
        own = Own()
        own.value = 1
        nn.save({**run.objects, "own": own}, tmp_path / "run.npz")

    def go_on(mesh: cc.Mesh) -> Any:
        run = made("momentum", mesh, 2)
        assert isinstance(run, Parallel)
        run.step(0)
        fails = int(mesh.ranks.rank) == failing
        own = Own(fails and fault == "own object")
        before = run.model.state_dict(), run.optimizer.state_dict(), random.state_dict()
        path = tmp_path / ("missing.npz" if fails and fault == "file" else "run.npz")
        with pytest.raises((OSError, RingtapeError, ZeroDivisionError)) as error:
            nn.load({**run.objects, "own": own}, path)
        assert same((run.model.state_dict(), run.optimizer.state_dict(), random.state_dict()), before)
        assert own.value == 0
        run.step(1)
        return str(error.value)

    on(3, begin)
    texts = on(3, go_on)
    for rank, text in enumerate(texts):
        assert "No such file" in text and ((f"rank {failing} could not load" in text) is (rank != failing)), text


def test_a_trainer_of_other_stages_is_refused_and_of_another_mesh_is_right(tmp_path: Path) -> None:
    def begin(mesh: cc.Mesh) -> Any:
        run = Trained(mesh, "dp", 2)
        run.step(0)
        nn.save(run.objects, tmp_path / "run.npz")
        return run.step(1)[0]

    def go_on(axis: str) -> Callable[[cc.Mesh], Any]:
        def program(mesh: cc.Mesh) -> Any:
            run = Trained(mesh, axis)
            nn.load(run.objects, tmp_path / "run.npz")
            return run.step(1)[0]

        return program

    right = on(3, begin)[0]
    for axis, ranks in (("dp", 1), ("dp", 2), ("tp", 2)):
        np.testing.assert_allclose(on(ranks, go_on(axis)), right, rtol=1e-12)
    with pytest.raises(OptionError, match="as many ranks along 'pp'"):
        on(2, go_on("pp"))


# -- by name -----------------------------------------------------------------------------------------------------------
KINDS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9), "Adam": lambda p: optim.Adam(p),
    "MasterWeights": lambda p: optim.MasterWeights(optim.Adam, p),
    "Offload": lambda p: optim.Offload(optim.Adam, p),
    "groups": lambda p: optim.Adam([{"params": p[:1], "lr": 0.5}, {"params": p[1:]}]),
    "groups in another order": lambda p: optim.Adam([{"params": p[1:]}, {"params": p[:1], "lr": 0.5}]),
}  # fmt: skip


def three(names: str, kind: str) -> tuple[list[ag.Parameter], Any]:
    """Parameters of one shape, in the order of `names`, and an optimizer that has taken a step with other gradients."""
    params = {n: ag.Parameter(np.full(2, ord(n), "float16" if kind == "MasterWeights" else "float32"), name=n)
              for n in names}  # fmt: skip
    return [params[n] for n in sorted(names) if n in params] if "groups" in kind else [*params.values()], params


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["abc", "cab", "bca"])
def test_the_state_of_a_parameter_is_found_by_its_name(kind: str, order: str, tmp_path: Path) -> None:
    def take(optimizer: Any, params: dict[str, Any]) -> None:
        with ag.Tape() as tape:
            loss = sum((p.astype(float) * (1 + ord(n) - ord("a"))).sum() for n, p in params.items())
            loss = optimizer.scale(loss) if isinstance(optimizer, optim.MasterWeights) else loss
        tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    other = "groups in another order" if kind == "groups" else kind
    given, first = three("abc", kind)
    old = KINDS[kind](given)
    take(old, first)
    nn.save({"o": old}, tmp_path / "o.npz")
    given, second = three(order, kind)
    new = KINDS[other](given)
    nn.load({"o": new}, tmp_path / "o.npz")
    for n, p in second.items():
        p.data = first[n].numpy()
    if kind == "MasterWeights":
        nn.load({"o": new}, tmp_path / "o.npz")  # the assignment has replaced the masters
    for _ in range(2):
        take(old, first)
        take(new, second)
    for n, p in second.items():
        assert (p.numpy() == first[n].numpy()).all(), n


def test_other_names_are_refused_with_what_differs_and_old_states_go_by_position() -> None:
    _, params = three("abc", "SGD")
    old = optim.SGD(params.values(), lr=0.1, momentum=0.9)
    for i, p in enumerate(params.values()):
        p.grad = np.full(2, i, "float32")
    old.step()
    state = old.state_dict()
    assert state["names"] == [["a", "b", "c"]]
    _, others = three("abd", "SGD")
    new = optim.SGD(others.values(), lr=0.1, momentum=0.9)
    before = new.state_dict()
    with pytest.raises(ShapeError, match=r"without \['d'\], with \['c'\] .*\n  fix: .*\n  or: .*p.name"):
        new.load_state_dict(state)
    assert same(new.state_dict(), before)
    for p, name in zip(others.values(), "abc", strict=True):  # the second fix
        p.name = name
    new.load_state_dict(state)
    assert same(new.state_dict(), state)
    with pytest.raises(ShapeError, match="in other groups: group 0 has"):
        optim.SGD([{"params": list(params.values())[:2]}, {"params": list(params.values())[2:]}], 0.1, momentum=0.9
                  ).load_state_dict({**state, "names": [["a"], ["b", "c"]], "groups": [{}, {}]})  # fmt: skip
    _, turned = three("cba", "SGD")
    by_position = optim.SGD(turned.values(), lr=0.1, momentum=0.9)
    by_position.load_state_dict({key: x for key, x in state.items() if key != "names"})  # of an older version
    assert same(by_position.velocity, state["velocity"])
    unnamed = optim.SGD([ag.Parameter(np.zeros(2, "float32")) for _ in "abc"], lr=0.1, momentum=0.9)
    unnamed.load_state_dict(state)
    assert same(unnamed.velocity, state["velocity"])


def test_over_mpi(tmp_path: Path) -> None:
    program = str(Path(__file__).parent / "programs" / "resume_program.py")
    outcome = launch_command([program, str(tmp_path)], 3, limit_s=90, OPENBLAS_NUM_THREADS="1")
    assert outcome.code == 0 and "all went on" in outcome.out, outcome.out + outcome.err
