"""Data sets and `DataLoader`: the same batches on any number of ranks, prefetch, and the place in a run."""

from __future__ import annotations

import gc
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import data, random
from autograd.errors import (
    ArgumentError,
    DeadlockError,
    DtypeError,
    LayoutError,
    MeshError,
    OptionError,
    ReplicaMismatch,
    ShapeError,
)

KEY = random.Key(3, "train")
X, Y = numpy.arange(33.0).reshape(11, 3), numpy.arange(11)
SET = data.TensorDataset(X, Y)


class Squares(data.Dataset):
    """Computed examples, nested, that name the thread in which they are made."""

    def __init__(self, n: int, wrong: int | None = None):
        self.n, self.wrong = n, wrong
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        self.threads.add(threading.current_thread().name)
        if i == self.wrong:
            raise ZeroDivisionError("example is broken")
        return {"x": [float(i), numpy.full(2, i)], "y": i * i}


def loaders() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("ringtape data loader")]


@pytest.mark.parametrize("how", [{}, {"drop_last": True}, {"num_workers": 1}, {"num_workers": 3, "prefetch_factor": 1}])
@pytest.mark.parametrize("axes", [{"dp": 1}, {"dp": 2}, {"dp": 3}, {"dp": 2, "tp": 2}, {"dp": 5}])
def test_the_union_of_the_rows_over_the_ranks_is_one_global_batch(axes: dict[str, int], how: dict[str, Any]) -> None:
    alone = [(x.numpy(), y.numpy()) for x, y in data.DataLoader(SET, 4, True, key=KEY, **how)]
    rows = [4, 4, 3][: len(alone)]
    assert [len(y) for _, y in alone] == rows and rows[-1] == (4 if how.get("drop_last") else 3)

    def program() -> Any:
        with cc.Mesh(**axes) as mesh:
            found = []
            for x, y in data.DataLoader(SET, 4, True, key=KEY, axis="dp", **how):
                assert x.global_shape == (len(alone[len(found)][1]), 3) and y.global_shape == x.global_shape[:1]
                assert x.layout["dp"] == cc.Shard(0) and dict(x.layout).get("tp", ag.C) is ag.C
                whole = cc.all_gather(x, "dp")  # the labels are those of the parts, also of empty ones
                numpy.testing.assert_array_equal(whole.numpy(), alone[len(found)][0])
                found.append((x.numpy(), y.numpy()))
            return mesh.place[-1] if "tp" in axes else 0, found

    ranks = [found for tp, found in cc.run(program, int(numpy.prod(list(axes.values())))) if tp == 0]
    assert {len(found) for found in ranks} == {len(alone)}
    for i, (x, y) in enumerate(alone):
        numpy.testing.assert_array_equal(numpy.concatenate([found[i][0] for found in ranks]), x)
        numpy.testing.assert_array_equal(numpy.concatenate([found[i][1] for found in ranks]), y)
    assert not loaders()


def test_two_axes_share_the_rows() -> None:
    def program() -> Any:
        with cc.Mesh(dp=2, fsdp=2):
            ((x, y),) = data.DataLoader(SET, 11, axis=("dp", "fsdp"))
            return y.numpy().tolist(), x.global_shape, cc.all_reduce(y.sum(), ("dp", "fsdp"), to=cc.I).item()

    found = cc.run(program, 4)
    assert sum((rows for rows, *_ in found), []) == list(range(11))
    assert all(f[1:] == ((11, 3), 55) for f in found)


def test_a_constant_and_a_part_on_two_axes_train() -> None:
    """`cc.shard` of a constant, and the batches of a loader, beside a value of the ranks that share them."""
    w0 = numpy.ones((3, 2))

    def program(make: Any) -> Any:
        with cc.Mesh(dp=2, tp=2):
            w = ag.Parameter(w0)
            with ag.Tape() as tape:
                x = make()
                y = x @ cc.cast(w, "dp", to=cc.R)
                loss = cc.all_reduce((y**2).sum() + (x.T @ y).sum(), "dp", to=cc.I)
            tape.backward(loss)
            return w.grad.numpy()

    g = 2 * X.T @ (X @ w0) + (X.T @ X).sum(1, keepdims=True)
    for make in (
        lambda: cc.shard(ag.constant(X.copy()), "dp"), lambda: next(iter(data.DataLoader(SET, 11, axis="dp")))[0],
    ):  # fmt: skip
        for found in cc.run(program, 4, make):
            numpy.testing.assert_allclose(found, g)


def test_epochs_have_other_orders_and_every_example_once() -> None:
    loader = data.DataLoader(SET, 4, shuffle=True, key=KEY)
    epochs = [numpy.concatenate([y.numpy() for _, y in loader]).tolist() for _ in range(3)]
    assert loader.epoch == 3 and len(loader) == 3
    assert all(sorted(epoch) == list(range(11)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[1] == random.permutation(KEY.at(1), 11).tolist()
    in_order = data.DataLoader(SET, 4)
    assert [y.tolist() for _, y in in_order] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    random.seed(4)
    by_seed = [y.tolist() for _, y in data.DataLoader(SET, 4, shuffle=True)]
    random.seed(4)
    assert by_seed == [y.tolist() for _, y in data.DataLoader(SET, 4, shuffle=True)]


def test_nested_examples_and_ranks_without_rows() -> None:
    def program() -> Any:
        with cc.Mesh(dp=3):
            (batch,) = data.DataLoader(Squares(2), 2, axis="dp", num_workers=1)
            a, b = batch["x"]
            assert b.global_shape == (2, 2) and b.dtype == numpy.full(2, 1).dtype and a.dtype == float
            return a.numpy().shape, b.numpy().shape, batch["y"].tolist()

    assert cc.run(program, 3) == [((1,), (1, 2), [0]), ((1,), (1, 2), [1]), ((0,), (0, 2), [])]


def test_a_memory_map_is_read_by_rows(tmp_path: Path) -> None:
    numpy.save(tmp_path / "X.npy", X)
    mapped = numpy.load(tmp_path / "X.npy", mmap_mode="r")
    (x, y), *_ = data.DataLoader(data.TensorDataset(mapped, Y), 4, num_workers=1)
    assert type(x.numpy()) is numpy.ndarray and not numpy.shares_memory(x.numpy(), mapped)
    numpy.testing.assert_array_equal(x.numpy(), X[:4])
    w = ag.Parameter(numpy.ones(3))
    with ag.Tape() as tape:
        loss = (x @ w).sum()
    tape.backward(loss)


def test_threads_load_ahead_and_end() -> None:
    examples = Squares(40)
    batches = iter(data.DataLoader(examples, 4, num_workers=2, prefetch_factor=2))
    next(batches)
    assert loaders() and all(name.startswith("ringtape data loader") for name in examples.threads)
    del batches
    gc.collect()
    assert not loaders()  # an iteration that is dropped ends its threads
    for batch in data.DataLoader(examples, 4, num_workers=1):
        assert batch["y"].shape == (4,)
        break
    gc.collect()
    assert not loaders()
    whole = [b["y"].tolist() for b in data.DataLoader(examples, 7, num_workers=3)]
    assert sum(whole, []) == [i * i for i in range(40)] and not loaders()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_thread_is_raised_where_its_batch_is_asked_for(workers: int) -> None:
    loader = data.DataLoader(Squares(12, wrong=6), 2, num_workers=workers)
    seen = []
    with pytest.raises(ZeroDivisionError, match="broken") as caught:
        for batch in loader:
            seen.append(batch["y"].shape)
    assert len(seen) == 3 and caught.value.__notes__ == ["while DataLoader loaded the examples 6, 7 of epoch 0"]
    assert "__getitem__" in [entry.name for entry in caught.traceback]
    assert not loaders()

    class Talks(Squares):
        def __getitem__(self, i: int) -> Any:
            return cc.all_reduce(ag.tensor([1.0]), "dp")

    with cc.Mesh(dp=1):
        with pytest.raises(MeshError):
            list(data.DataLoader(Talks(2), 1, axis="dp", num_workers=1))


def test_a_deadlock_is_found_while_batches_are_loaded_ahead() -> None:
    """Rank 0 gives up in the middle of an epoch, and rank 1 asks for a sum that never comes."""

    def program() -> None:
        with cc.Mesh(dp=2) as mesh:
            for i, (x, _) in enumerate(data.DataLoader(SET, 4, axis="dp", num_workers=1)):
                if mesh.place[0] == 0 and i == 1:
                    cc.recv("dp", 1)
                cc.all_reduce(x.sum(), "dp")

    start = time.monotonic()
    with pytest.raises((DeadlockError, cc.CollectiveMismatch)):
        cc.run(program, 2)
    assert time.monotonic() - start < 5
    gc.collect()
    assert not loaders()


@pytest.mark.parametrize("taken", [0, 1, 3, 4, 6])
def test_a_run_continues_at_its_place(taken: int) -> None:
    whole = data.DataLoader(SET, 4, shuffle=True, key=KEY)
    expected = [(whole.epoch, y.tolist()) for _ in range(3) for _, y in whole]
    first = data.DataLoader(SET, 4, shuffle=True, key=KEY, num_workers=2)
    found: list[Any] = []
    while len(found) < taken:
        for _, y in first:
            found.append((first.epoch, y.tolist()))
            if len(found) == taken:
                break
    saved = json.loads(json.dumps(first.state_dict()))
    second = data.DataLoader(SET, 4, shuffle=True)  # the key is restored
    second.load_state_dict(saved)
    while second.epoch < 3:
        for _, y in second:
            found.append((second.epoch, y.tolist()))
    assert found == expected


def test_a_run_continues_on_another_number_of_ranks_and_with_other_batches() -> None:
    first = data.DataLoader(SET, 4, shuffle=True, key=KEY)
    next(iter(first))
    state = first.state_dict()
    order = random.permutation(KEY.at(0), 11).tolist()

    def program() -> Any:
        with cc.Mesh(dp=3):
            loader = data.DataLoader(SET, 5, shuffle=True, key=KEY, axis="dp")
            loader.load_state_dict(state)
            return [y.numpy().tolist() for _, y in loader]

    found = cc.run(program, 3)
    batches = [sum((rank[i] for rank in found), []) for i in range(2)]
    assert batches == [order[4:9], order[9:]]


def test_an_iteration_that_is_broken_off_is_followed_by_the_next_epoch() -> None:
    loader = data.DataLoader(SET, 4, shuffle=True, key=KEY)
    old = iter(loader)
    next(old)
    again = [y.tolist() for _, y in loader]
    assert sum(again, []) == random.permutation(KEY.at(1), 11).tolist() and loader.epoch == 2
    list(old)  # an older iteration does not count
    assert (loader.epoch, loader.position) == (2, 0)


def test_split() -> None:
    parts = data.random_split(SET, [0.5, 0.3, 0.2], KEY)
    assert [len(p) for p in parts] == [6, 3, 2]
    assert sorted(int(i) for p in parts for i in p.indices) == list(range(11))
    assert [len(p) for p in data.random_split(SET, [10, 1], KEY)] == [10, 1]
    (_, y), *_ = data.DataLoader(parts[1], 3)
    assert y.tolist() == parts[1].indices.tolist()
    assert data.Subset(Squares(9), [3, 5]).batch([1])["y"].tolist() == [25]
    assert data.Subset([7, 8, 9], [2, 0]).batch([0, 1]).tolist() == [9, 7]
    with pytest.raises(DtypeError, match="flatnonzero"):
        data.Subset(SET, Y > 3)
    with pytest.raises(DtypeError, match="a length"):
        data.random_split(SET, ["a"], KEY)  # type: ignore[list-item]
    assert list(data.DataLoader(data.Subset(SET, []), 2)) == []
    for lengths in ([5, 5], [0.5, 0.4], [12, -1], [5.5, 5.5]):
        with pytest.raises(OptionError, match="sum"):
            data.random_split(SET, lengths, KEY)


def test_what_is_refused() -> None:
    for wrong in (0, -1):
        with pytest.raises(OptionError, match="batch_size"):
            data.DataLoader(SET, wrong)
    with pytest.raises(DtypeError, match="batch_size"):
        data.DataLoader(SET, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="TensorDataset"):
        data.DataLoader((X, Y), 2)
    with pytest.raises(ArgumentError, match="__len__"):
        data.DataLoader(iter([1, 2]), 2)
    with pytest.raises(LayoutError, match="along"):
        data.DataLoader(SET, 2, True, key=KEY.along("dp"))
    with pytest.raises(ShapeError, match="same number of rows"):
        data.TensorDataset(X, Y[:3])
    with pytest.raises(MeshError, match="no mesh"):
        iter(data.DataLoader(SET, 2, axis="dp"))
    with pytest.raises(DtypeError, match="collate_fn"):
        list(data.DataLoader([("a", 1)], 1))
    with pytest.raises(ShapeError, match="pad"):
        list(data.DataLoader([X[0], X[0, :2]], 2))
    with pytest.raises(ArgumentError, match="nesting"):
        list(data.DataLoader([(1, 2), [1, 2]], 2))
    with pytest.raises(ShapeError, match="a row for each"):
        list(data.DataLoader([1, 2], 2, collate_fn=lambda xs: numpy.ones(3)))
    with cc.Mesh(dp=1) as mesh:
        with pytest.raises(OptionError, match="axis='dp': the ranks of the axis share"):
            iter(data.DataLoader(SET, 2))
        with pytest.raises(MeshError, match="tp"):
            iter(data.DataLoader(SET, 2, axis="tp"))
        with pytest.raises(LayoutError, match="depends on the rank"):
            data.DataLoader(SET, mesh.axis("dp").rank + 1)
        with pytest.raises(LayoutError, match="all rows on every rank"):
            data.TensorDataset(ag.tensor(X, {"dp": cc.Shard(0)}))
        with pytest.raises(LayoutError, match="fix: make the data set of the array with all rows"):
            data.TensorDataset(ag.tensor(X, {"dp": cc.V}))
        with pytest.raises(LayoutError, match=r"fix: x.numpy\(\)"):
            data.TensorDataset(ag.tensor(X, {"dp": cc.R}))
        batches = iter(data.DataLoader(SET, 2, axis="dp"))
    with pytest.raises(MeshError, match="the mesh has changed"):
        next(batches)
    state = data.DataLoader(SET, 2).state_dict()
    with pytest.raises(OptionError, match="shuffled"):
        data.DataLoader(SET, 2, True).load_state_dict(state)
    with pytest.raises(OptionError, match="11 examples"):
        data.DataLoader([1, 2], 2).load_state_dict(state)
    with pytest.raises(OptionError, match="state_dict of a DataLoader"):
        data.DataLoader(SET, 2).load_state_dict({"epoch": 1})


@pytest.mark.parametrize("differs", ["key", "length", "split"])
def test_ranks_with_different_orders_are_told(differs: str) -> None:
    def program() -> None:
        with cc.Mesh(dp=2) as mesh:
            place = int(mesh.place[0])
            key = random.Key(place if differs == "key" else 0, "train")
            rows = 8 - place if differs == "length" else 8
            found: Any = data.TensorDataset(X[:rows], Y[:rows])
            if differs == "split":
                found, _ = data.random_split(found, [4, 4], random.Key(place))
            for x, _ in data.DataLoader(found, 4, True, key=key, axis="dp"):
                cc.all_reduce(x.sum(), "dp")

    with pytest.raises(ReplicaMismatch, match="the orders of rank 1") as caught:
        cc.run(program, 2)
    assert "test_loader.py" in str(caught.value)


def test_all_rows_on_every_rank_are_constants_so_that_a_sum_counts_them_once() -> None:
    def program() -> Any:
        with cc.Mesh(dp=2):
            ((x, _),) = data.DataLoader(SET, 11, axis=())
            w = ag.Parameter(numpy.ones(3))
            with pytest.raises(LayoutError, match="Replicated"):
                with ag.Tape():
                    cc.all_reduce((x @ cc.cast(w, "dp", to=cc.R)).sum(), "dp", to=cc.I)
            return x.layout["dp"] is ag.C

    assert cc.run(program, 2) == [True, True]


def test_repr_and_augmentation_of_a_batch() -> None:
    assert repr(data.DataLoader(SET, 4)) == (
        "DataLoader(TensorDataset of 11 examples, batch_size=4, shuffle=False, epoch=0, position=0)"
    )
    alone = [data.random_flip(x, KEY.at(0)).numpy() for x, _ in data.DataLoader(SET, 11)][0]

    def program() -> Any:
        with cc.Mesh(dp=2):
            ((x, _),) = data.DataLoader(SET, 11, axis="dp")
            return data.random_flip(x, KEY.at(0)).numpy()

    numpy.testing.assert_array_equal(numpy.concatenate(cc.run(program, 2)), alone)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: data.Subset(x, [0, 1])])
def test_rows_of_each_rank_are_no_data_set_of_all(wrap: Any) -> None:
    """Equally many on each rank, so that the number of examples does not tell."""

    def program() -> None:
        with cc.Mesh(dp=-1) as mesh:
            own = wrap(data.TensorDataset(numpy.arange(12.0).reshape(6, 2)[int(mesh.axis("dp").rank) :: 3]))
            for (x,) in data.DataLoader(own, 2, axis="dp"):
                cc.all_reduce(x.sum(), "dp", to=cc.R)

    with pytest.raises(ReplicaMismatch, match="three with digest"):
        cc.run(program, 3)


def test_a_data_set_of_tensors_that_are_the_same_on_all_ranks() -> None:
    def rank_main() -> Any:
        with cc.Mesh(dp=-1):
            drawn = ag.random.normal(ag.random.Key(0, "X"), (6, 2))
            constant = ag.constant(Y[:6]) + 0
            assert drawn.layout["dp"] is ag.D
            assert constant.layout is None or constant.layout["dp"] is ag.C
            labelled = constant + ag.constant(0)
            loader = data.DataLoader(data.TensorDataset(drawn, constant, labelled), 4, axis="dp")
            return [[x.numpy() for x in batch] for batch in loader]

    wanted = ag.random.normal(ag.random.Key(0, "X"), (6, 2))
    for ranks in (1, 3):
        parts = cc.run(rank_main, ranks)
        rows = [numpy.concatenate([part[k][0] for part in parts]) for k in range(2)]
        numpy.testing.assert_array_equal(numpy.concatenate(rows), wanted)
