"""What programs make again and again leaves nothing: objects and traced memory do not grow with the number made."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import data, nn, optim, random
from parallel import DataParallel, TopK, Trainer, checkpoint, pipeline

from ..collectives.launch import launch

pytestmark = pytest.mark.filterwarnings("ignore")
MADE = 16
ROUNDS, MOST_ROUNDS = 3, 60
NOISE = 24  # bytes for each; Python keeps freed tuples, whose memory is traced, so a round may leave more
X = np.ones((6, 3))
here = threading.local()


def number() -> int:
    here.number = getattr(here, "number", 0) + 1
    return int(here.number)


def trained(model: Any, optimizer: Any) -> None:
    x = cc.from_local(X, {"dp": cc.Shard(0)})
    with ag.Tape() as tape:
        loss = cc.all_reduce((model(x) ** 2).sum(), "dp", to=cc.I) / 18
    tape.backward(loss)
    optimizer.step()


def parallel_model(zero: int, **words: Any) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        with cc.Mesh(dp=-1):
            model = DataParallel(nn.Linear(3, 2, dtype=float, key=random.Key(0)), "dp", zero=zero, **words)
            trained(model, optim.Adam(model.parameters(), lr=0.1))

    return make


def on_mesh(do: Callable[[], object], **words: Any) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        with cc.Mesh(dp=-1, **words):
            do()

    return make


def a_sum() -> Any:
    return cc.all_reduce(ag.tensor(np.ones(3), {"dp": cc.V}), "dp")


def other_names(folder: Path) -> None:
    axis = f"axis{number()}"
    with cc.Mesh(**{axis: -1}):
        ag.tensor(np.ones(3), {axis: cc.V})


def several_axes(folder: Path) -> None:
    with cc.Mesh(dp=-1, tp=1) as mesh:
        mesh.axis(("dp", "tp"))


def tape(folder: Path) -> None:
    p = ag.Parameter(X)
    with ag.Tape() as tape:
        loss = (p * 2).sum()
    tape.backward(loss)


def captured(folder: Path) -> None:
    w = ag.Parameter(np.ones(3))

    @ag.capture
    def step(x: Any) -> Any:
        with ag.Tape() as tape:
            loss = (w * x).sum()
        tape.backward(loss)
        w.zero_grad()
        return loss

    for _ in range(4):
        step(np.ones(3))


def groups(folder: Path) -> None:
    opt = optim.SGD([{"params": [p]} for p in nn.Linear(3, 2).parameters()], lr=0.1)
    opt.param_groups[0]["lr"] = 0.5
    opt.load_state_dict(opt.state_dict())


def pipelined(folder: Path) -> None:
    with cc.Mesh(pp=-1):
        layers = [nn.Linear(3, 3, dtype=float), nn.Tanh(), nn.Linear(3, 3, dtype=float)]
        loss = nn.MSELoss(reduction="sum")
        pipeline.Pipeline(layers, loss, axis="pp", microbatches=2).step(np.ones((4, 3)), np.ones((4, 3)))


def trainer(folder: Path) -> None:
    with cc.Mesh(dp=-1) as mesh:
        Trainer(lambda: nn.Sequential(nn.Linear(3, 2, dtype=float)), nn.MSELoss(reduction="sum"), mesh,
                optimizer=lambda params: optim.SGD(params, lr=0.1)).step(X, np.ones((6, 2)))  # fmt: skip


def archive(folder: Path, suffix: str = "npz") -> None:
    path = folder / f"{int(cc.world().rank)}.{suffix}"
    nn.save(nn.Linear(3, 2), path)
    nn.load(nn.Linear(3, 2), path)
    nn.contents(path)


def saved(folder: Path) -> None:
    with cc.Mesh(dp=-1):
        model = nn.Linear(3, 2, key=random.Key(0))
        checkpoint.save(folder / "run", {"m": model}, 1, overwrite=True)
        checkpoint.load(folder / "run", {"m": model})


def loader(folder: Path) -> None:
    for _ in data.DataLoader(data.TensorDataset(X, np.arange(6)), batch_size=2):
        pass


def lanes(folder: Path) -> None:
    group = cc.world().subgroup(list(range(cc.world().size)), "mine")
    group.lane("purpose")
    group.exchange(b"x")


def unused_message(folder: Path) -> None:
    """An end that is dropped before another rank has made its own: the message waits for it."""
    world = cc.world()
    group = world.subgroup(list(range(world.size)), "pair")
    if world.size > 1:
        if group.index == 0:
            group.send(np.ones(2), 1)
        elif group.index == 1:
            assert group.recv(np.zeros(2), 0) is not None


def refused(folder: Path) -> None:
    with cc.Mesh(dp=-1), pytest.raises(ag.RingtapeError):
        ag.tensor(X, {"dp": cc.P}) * ag.tensor(X, {"dp": cc.P})


def copied(folder: Path) -> None:
    model = nn.Linear(3, 2)
    copy.deepcopy(model)
    pickle.loads(pickle.dumps(model))


def listened(folder: Path) -> None:
    with cc.timeline(None):
        a = ag.tensor(X) * 2
    assert a is not None


KINDS: dict[str, Callable[[Path], object]] = {
    "meshes": on_mesh(lambda: None), "meshes of several axes": several_axes, "meshes of other names": other_names,
    "sums": on_mesh(a_sum), "sums by a ring": on_mesh(a_sum, algorithm="ring"),
    "sums by a table": on_mesh(a_sum, algorithm="auto"), "started sums": on_mesh(lambda: cc.all_reduce_async(
        ag.tensor(X, {"dp": cc.V}), "dp").wait()),
    "subgroups and lanes": lanes, "messages": unused_message, "tapes": tape, "captures": captured,
    "layouts": on_mesh(lambda: cc.Shard(0, extent=8 * number(), offset=0)), "groups": groups,
    "modules": lambda folder: nn.Sequential(nn.Linear(3, 2), nn.Tanh())(X.astype("f4")), "copies": copied,
    "keys": lambda folder: random.normal(random.Key(0, f"k{number()}").fold("b"), (3,)), "loaders": loader,
    "DataParallel": parallel_model(0), "ZeRO-1": parallel_model(1), "ZeRO-3": parallel_model(3),
    "compression": parallel_model(0, reduction=TopK(0.5)), "pipelines": pipelined, "trainers": trainer,
    "archives": archive, "safetensors": lambda folder: archive(folder, "safetensors"), "checkpoints": saved,
    "errors": refused, "timelines": listened, "gradients": lambda folder: ag.grad(lambda x: (x * x).sum())(np.ones(3)),
}  # fmt: skip


def growth(
    make: Callable[[Path], object], ranks: int, folder: Path, most: int = MOST_ROUNDS
) -> tuple[dict[str, int], int]:
    """The objects, by type, and the bytes that each round of `MADE` has left, at the least.

    What leaks leaves as much in each round. What Python keeps for later leaves less and less: there are more rounds
    until one leaves nothing.
    """
    least: Counter[str] = Counter()
    sizes: list[int] = []
    known: Counter[str] = Counter()
    rounds = range(ROUNDS + 1)

    def grown() -> int:
        return min(b - a for a, b in zip(sizes[1:], sizes[2:], strict=False))

    def count() -> None:
        """Compare with the round before. Of the rounds only the least growth is kept, which takes no more memory."""
        nonlocal known
        counts = Counter(type(x).__qualname__ for x in gc.get_objects())
        for kind, n in counts.items():
            least[kind] = n - known[kind] if len(sizes) < 2 else min(least[kind], n - known[kind])
        known = counts
        sizes.append(tracemalloc.get_traced_memory()[0])

    def program() -> None:
        nonlocal rounds
        world = cc.world()
        done = 0
        while done < len(rounds):
            done += 1
            for _ in range(MADE):
                make(folder)
            world.barrier()
            if world.rank == 0:
                gc.collect()
            world.barrier()
            cc.Mesh(end=-1)  # what the collector has dropped is forgotten when the next is made
            world.barrier()
            if world.rank == 0:
                gc.collect()
                count()
                if done == len(rounds) < most and grown() >= NOISE * MADE:
                    rounds = range(done + 1)
            world.barrier()

    gc.freeze()  # what other tests have left is not looked at, which takes the collector most of its time
    tracemalloc.start(1)
    try:
        cc.run(program, ranks)
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    return {kind: n for kind, n in least.items() if n >= MADE // 2}, grown()


OF_ONE_PROCESS = frozenset(("modules", "copies", "keys", "archives", "safetensors", "gradients"))


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [(kind, 1 if kind in OF_ONE_PROCESS else 2) for kind in KINDS]
    + [pytest.param(kind, 1, marks=pytest.mark.slow) for kind in KINDS if kind not in OF_ONE_PROCESS],
)
def test_nothing_stays(tmp_path: Path, kind: str, ranks: int) -> None:
    objects, size = growth(KINDS[kind], ranks, tmp_path)
    assert not objects and size < NOISE * MADE


def test_what_stays_is_seen(tmp_path: Path) -> None:
    held: list[Any] = []
    assert growth(lambda folder: held.append([]), 1, tmp_path, 8)[0]["list"] >= MADE - 2
    assert growth(lambda folder: held.append(bytes(500)), 1, tmp_path, 8)[1] > 500 * MADE


def test_layouts_of_ever_new_extents_are_forgotten() -> None:
    """Those that live stay one object each."""

    def labelled(extents: Any) -> list[Any]:
        return [cc.from_local(np.ones((n, 2)), {"dp": cc.Shard(0)}).layout for n in extents]

    def program() -> tuple[int, bool]:
        with cc.Mesh(dp=-1):
            kept = labelled(range(1, 9))
            grid = kept[0].grid
        for start in range(0, 2000, 50):
            with cc.Mesh(dp=-1):
                labelled(range(start, start + 50))
        gc.collect()
        with cc.Mesh(dp=-1):
            again = labelled(range(1, 9))
        alive = sum(known() is not None for known in grid._layouts.values())
        return alive, all(a is b for a, b in zip(kept, again, strict=True))

    for alive, is_one in cc.run(program, 2):
        assert is_one and alive < 1000  # with those that caches of 256 shapes hold


@pytest.mark.parametrize("made", [200, pytest.param(3000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_meshes_over_mpi_do_not_use_up_its_communicators(made: int) -> None:
    """MPI libraries have about 2,000."""
    done = launch("what_stays_program.py", 2, str(made), limit_s=60 if made < 1000 else 500)
    assert done.code == 0 and f"{made} meshes, each has left 0 objects" in done.out, done
