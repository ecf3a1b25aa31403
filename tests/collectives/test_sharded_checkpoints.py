"""Checkpoints of sharded models: the natural programs write and read whole values, or are refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from collectives import Shard, V

from ..on_mesh import on_mesh

pytestmark = pytest.mark.timeout(60)
W, B = np.arange(15.0).reshape(5, 3), np.arange(5.0)


class Column(nn.Module):
    """A linear layer whose rows are divided along "tp", if the mesh has this axis."""

    def __init__(self, factor: float = 0.0):
        mesh = cc.current_mesh()
        self.weight = self.cut(mesh, factor * W)
        self.bias = ag.Parameter(factor * B)

    @staticmethod
    def cut(mesh: Any, whole: Any) -> ag.Parameter:
        if "tp" not in mesh.names:
            return ag.Parameter(whole)
        axis = mesh.axis("tp")
        part = np.array_split(whole, axis.size)[int(axis.rank)]
        return ag.Parameter(part, {"tp": Shard(0)}, global_shape=whole.shape)


def is_right(model: Column, factor: float = 1.0) -> bool:
    same = (model.weight.numpy() == Column(factor).weight.numpy()).all() and (model.bias.numpy() == factor * B).all()
    return bool(same)


@pytest.mark.parametrize("saved", [{"tp": 2}, {"tp": 3}, {"dp": 2, "tp": 2}, {"dp": 2}])
def test_a_checkpoint_is_loaded_on_any_number_of_ranks(tmp_path: Path, saved: dict[str, int]) -> None:
    path = tmp_path / "model.npz"

    def load(mesh: Any) -> bool:
        model = Column()
        nn.load(model, path)
        return is_right(model)

    def save(mesh: Any) -> bool:
        nn.save(Column(1.0), path)
        return load(mesh)  # the file is complete when save returns

    assert all(on_mesh(save, **saved))
    assert os.listdir(tmp_path) == ["model.npz"]
    with np.load(path) as file:
        assert sorted(file.files) == ["bias", "weight"] and (file["weight"] == W).all()
    for sizes in ({"tp": 1}, {"tp": 4}, {"dp": 3}):
        assert all(on_mesh(load, **sizes))


def test_rank_0_alone_writes_a_replicated_model_and_no_part_of_a_sharded_one(tmp_path: Path) -> None:
    def save(mesh: Any) -> None:
        if int(mesh.ranks.rank) == 0:
            nn.save(Column(1.0), tmp_path / "model.npz")

    on_mesh(save, dp=2)
    assert os.listdir(tmp_path) == ["model.npz"]
    os.remove(tmp_path / "model.npz")
    with pytest.raises(cc.DeadlockError, match="gathers the parts of a Shard, so that all ranks call it"):
        on_mesh(save, tp=2)

    def trains_on(mesh: Any) -> None:
        save(mesh)
        cc.all_reduce(ag.tensor([1.0]), "tp")

    with pytest.raises(cc.CollectiveMismatch, match=r"Column.state_dict\(weight\), which gathers the parts of a Shard"):
        on_mesh(trains_on, tp=2)
    with pytest.raises(cc.CommunicationError):
        on_mesh(lambda mesh: pickle.dumps(Column(1.0).state_dict()) if int(mesh.ranks.rank) == 0 else None, tp=2)
    assert os.listdir(tmp_path) == []


def test_a_state_that_is_pickled_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.pkl"

    def program(mesh: Any) -> bool:
        state = Column(1.0).state_dict()
        if int(mesh.ranks.rank) == 0:
            path.write_bytes(pickle.dumps(state))
        mesh.ranks.barrier()
        model = Column()
        model.load_state_dict(pickle.loads(path.read_bytes()))
        return is_right(model)

    assert all(on_mesh(program, tp=2))


def test_the_part_of_one_rank_is_refused_where_the_whole_is_needed() -> None:
    def program(mesh: Any) -> Any:
        model, mine = Column(), Column(1.0)
        part = mine.weight.numpy()
        with pytest.raises(ag.ShapeError) as error:
            model.load_state_dict({"weight": part, "bias": B})
        assert not model.bias.numpy().any()  # nothing was changed
        own = ag.tensor(part, {"tp": Shard(0)}, global_shape=W.shape)
        model.load_state_dict({"weight": own, "bias": B})  # the fix
        assert is_right(model)
        with pytest.raises(ag.LayoutError, match="load_state_dict of w"):
            Holder(ag.Parameter(part, {"tp": Shard(0)})).load_state_dict({"w": W})
        return str(error.value), part.shape

    for text, shape in on_mesh(program, tp=2):
        assert f"weight has shape {shape}; needed: (5, 3), the shape of the whole value" in text
        for word in ("tp: Shard(0)", "part of another rank", "fix: the whole value", "test_sharded_checkpoints.py:"):
            assert word in text


class Holder(nn.Module):
    def __init__(self, w: ag.Parameter):
        self.w = w


def test_two_axes_divide_one_dimension() -> None:
    whole = np.arange(14.0)

    def program(mesh: Any) -> bool:
        sharded = cc.shard(cc.shard(ag.tensor(whole, {"a": cc.R, "b": cc.R}), "a"), "b")
        model = Holder(ag.Parameter(sharded))
        assert (model.state_dict()["w"] == whole).all()
        model.load_state_dict({"w": whole + 1})
        return bool((model.w.numpy() == sharded.numpy() + 1).all())

    assert all(on_mesh(program, a=2, b=3))


def test_outside_of_the_mesh_the_parts_are_out_of_reach(tmp_path: Path) -> None:
    def program() -> None:
        with cc.Mesh(tp=2):
            model = Column(1.0)
        with pytest.raises(ag.MeshError, match="fix: call Column.state_dict inside `with mesh:`"):
            nn.save(model, tmp_path / "model.npz")

    cc.run(program, 2)
    assert os.listdir(tmp_path) == []


def test_an_optimizer_goes_on_on_another_number_of_ranks() -> None:
    def train(state: Any, mesh: Any) -> Any:
        model = Column(1.0)
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        if state is not None:
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        for _ in range(2):
            model.zero_grad()
            with ag.Tape() as tape:
                loss = (model.weight * model.weight).sum()
                loss = cc.all_reduce(loss, "tp", to=cc.I) if "tp" in mesh.names else loss
                loss = loss + (model.bias * model.bias * model.bias).sum()
            tape.backward(loss)
            optimizer.step()
        return model.state_dict(), optimizer.state_dict()

    serial = on_mesh(lambda mesh: train(train(None, mesh), mesh), dp=1)[0]
    halfway = on_mesh(lambda mesh: train(None, mesh), tp=2)
    for state in halfway:
        for found in on_mesh(lambda mesh, state=state: train(state, mesh), tp=3):
            for name in ("weight", "bias"):
                np.testing.assert_allclose(found[0][name], serial[0][name], rtol=1e-12)
            for mine, right in zip(found[1]["first"], serial[1]["first"], strict=True):
                np.testing.assert_allclose(mine, right, rtol=1e-12)


def test_the_values_of_another_rank_are_refused(tmp_path: Path) -> None:
    """Varying values have no whole: one path for all ranks keeps those of one of them."""

    def program(mesh: Any) -> Any:
        rank = int(mesh.ranks.rank)
        model, other = (Holder(ag.Parameter(np.ones(2) * n, {"pp": V})) for n in (rank + 1.0, 0.0))
        nn.save(model, tmp_path / "one.npz")
        nn.save(model, tmp_path / f"model.{rank}.npz")
        mesh.ranks.barrier()
        nn.load(other, tmp_path / f"model.{rank}.npz")  # the fix
        assert (other.w.numpy() == model.w.numpy()).all()
        try:
            nn.load(other, tmp_path / "one.npz")
        except ag.RingtapeError as error:
            assert not other.w.numpy().any() or (other.w.numpy() == model.w.numpy()).all()
            return str(error)
        return ""

    texts = on_mesh(program, pp=3)
    assert sum("so nothing was changed on any rank" in text for text in texts) == 1
    assert all("fix: a path for each rank" in text for text in texts)


def test_a_writer_that_fails_is_named_on_all_ranks(tmp_path: Path) -> None:
    def program(mesh: Any) -> str:
        try:
            nn.save(Column(1.0), tmp_path / "missing" / "model.npz")
        except (OSError, ag.RingtapeError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    first, second = on_mesh(program, tp=2)
    assert first.startswith("WriteError") and "save: rank 0 could not write the file" in second
