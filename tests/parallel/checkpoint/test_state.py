"""Every kind of run that has a state goes on from a checkpoint, bitwise on the same mesh; see `test_resume`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.digests import blake2b
from autograd.errors import ArgumentError, CheckpointError, LayoutError, ReplicaMismatch, RingtapeError, ShapeError
from parallel import DataParallel, checkpoint
from parallel.checkpoint import disk, loading

from ..test_resume import RUNS, Parallel, made, on, same, uninterrupted

pytest.importorskip("safetensors", reason="safetensors is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")


def train(name: str, ranks: int, path: Path, before: int, after: int, other: int | None = None) -> list[Any]:
    """What `after` steps compute, after `before` ones of a run that was saved and loaded into fresh objects."""

    def first(mesh: cc.Mesh) -> None:
        run = made(name, mesh)
        with run.block():
            for k in range(before):
                run.step(k)
            checkpoint.save(path, run.objects, before)

    def second(mesh: cc.Mesh) -> list[Any]:
        run = made(name, mesh, 5)  # other weights, and another seed, which the checkpoint replaces
        with run.block():
            assert checkpoint.load(path, run.objects).step == before
            return [run.step(before + k) for k in range(after)]

    on(ranks, first)
    return on(other or ranks, second)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_bitwise(tmp_path: Path, name: str, ranks: int) -> None:
    if name == "ParameterServer" and ranks > 1:
        with pytest.raises(ReplicaMismatch, match=r"optimizer/velocity.* is one value for ranks 0.*it is another one"):
            train(name, ranks, tmp_path, 3, 3)
        return  # each rank has the optimizer's state of the parameters that it serves: a file for each rank
    assert same(train(name, ranks, tmp_path, 3, 3), uninterrupted(name, ranks, 3, 3))


OF_ONE_RANK = ("LocalSGD", "DiLoCo", "ParameterServer", "loader")
CHANGED = [name for name in RUNS if name not in OF_ONE_RANK and "OneBit" not in name and name != "CompressedAdam"]


@pytest.mark.parametrize("name", CHANGED)
def test_another_number_of_ranks_goes_on(tmp_path: Path, name: str) -> None:
    """All that has no values of one rank. A reduction divides its memory anew, so only exact ones are compared."""
    found = train(name, 3, tmp_path, 3, 1, other=2)
    if not isinstance(_reduction(name), object) or _reduction(name) is None:
        losses = [x[0] for x in (found[0][0], uninterrupted(name, 3, 3, 1)[0][0])]
        assert losses[0] == pytest.approx(losses[1], rel=2e-2 if "Master" in name else 1e-9)


def _reduction(name: str) -> Any:
    found = []

    def program(mesh: cc.Mesh) -> None:
        run = made(name, mesh)
        found.append(run.reduction if isinstance(run, Parallel) else None)

    on(1, program)
    return found[0]


@pytest.mark.parametrize("name", ["LocalSGD", "DiLoCo"])
def test_values_of_one_rank_are_refused_on_another_mesh(tmp_path: Path, name: str) -> None:
    with pytest.raises(LayoutError, match="a value of its own|another value on each rank"):
        train(name, 2, tmp_path, 3, 1, other=3)


def test_nothing_is_changed_if_one_rank_refuses(tmp_path: Path) -> None:
    def program(mesh: cc.Mesh) -> None:
        run = made("momentum", mesh)
        run.step(0)
        checkpoint.save(tmp_path, run.objects, 1)
        other = made("momentum", mesh, 3)
        assert isinstance(other, Parallel)
        before = other.model.state_dict(), other.optimizer.state_dict(), random.state_dict()
        if mesh.ranks.rank == 1:
            other.objects["optimizer"].prepare_state_dict = _refuses
        with pytest.raises(RingtapeError, match="no thanks"):
            checkpoint.load(tmp_path, other.objects)
        after = other.model.state_dict(), other.optimizer.state_dict(), random.state_dict()
        assert same(before, after)

    on(3, program)


def _refuses(state: Any) -> Any:
    raise ValueError("no thanks")


def test_plain_values_of_all_kinds(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "n": 3, "x": 0.1, "t": "text", "none": None, "nan": float("nan"), "inf": -float("inf"), "yes": True,
        "list": [1, [2.5, "a"]], "tuple": (1, (2,)), "nested": {"a": {"b": np.arange(6).reshape(2, 3)}},
        "scalar": np.float32(0.1), "zero": np.array(3.0), "empty": np.zeros((0, 3), np.int16), "bool": np.array([True]),
        "complex": np.array([1 + 2j]), "half": np.array([0.1], np.float16), "texts": np.array(["a", "bcd"]),
        "big": np.arange(3, dtype=">f4"), "long": np.arange(3, dtype=np.longdouble) / 3,
        "time": np.array(["2020-01-02"], "datetime64[D]"), "turned": np.arange(6.0).reshape(2, 3).T,
    }  # fmt: skip

    def program(mesh: cc.Mesh) -> Any:
        checkpoint.save(tmp_path, values, 1)
        return checkpoint.load(tmp_path, values).values

    for found in on(2, program):
        assert found.keys() == values.keys()
        for name, x in values.items():
            y = found[name]
            assert type(x) is type(y), name
            if isinstance(x, np.ndarray | np.generic):
                assert x.dtype.newbyteorder("=") == y.dtype and x.shape == y.shape
            if name == "nested":
                assert np.array_equal(x["a"]["b"], y["a"]["b"])
            elif name == "nan":
                assert y != y
            else:
                assert np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y, name


def test_values_that_differ_between_the_ranks_are_kept_for_each(tmp_path: Path) -> None:
    def program(mesh: cc.Mesh, again: bool) -> Any:
        rank = int(mesh.ranks.rank)
        mine = {"a": np.arange(rank + 1), "b": {"c": rank, "same": 7}, "one": np.ones(3)}
        if not again:
            checkpoint.save(tmp_path, mine, 1)
        found = checkpoint.load(tmp_path, {}).values
        assert found["a"].tolist() == mine["a"].tolist() and found["b"] == mine["b"] and found["one"].sum() == 3
        return True

    assert on(3, lambda mesh: program(mesh, False)) == [True] * 3
    with pytest.raises(LayoutError, match=r"a was another value on each rank.*the mesh of the run"):
        on(2, lambda mesh: program(mesh, True))


# -- nested ------------------------------------------------------------------------------------------------------------
def nested(mesh: cc.Mesh, seed: int, stage: int = 1) -> dict[str, Any]:
    """Objects at several depths of mappings, lists and tuples, between plain values."""
    random.seed(seed)
    encoder = DataParallel(nn.Linear(5, 3, dtype=float), "dp", zero=stage)
    heads = [nn.Linear(3, 2, dtype=float), nn.Linear(3, 1, dtype=float)]
    made = [optim.AdamW(encoder.parameters(), lr=0.1), optim.SGD(heads[0].parameters(), lr=0.1, momentum=0.9)]
    for i, p in enumerate([p for each in made for p in each.parameters]):
        mine = int(mesh.ranks.rank) if i < len(made[0].parameters) else 0  # of parts each rank has its own
        rng = np.random.default_rng((seed, i, mine))
        p.grad = ag.Tensor(rng.standard_normal(p.array.shape), None if p.layout is None else p.layout.dual)
    for each in made:
        each.step()
    return {
        "model": {"encoder": encoder, "heads": tuple(heads), "note": {"n": seed, "w": np.arange(seed)}},
        "optimizers": made, "mixed": [made[0], seed, {"inner": [heads[1]]}], "epoch": 3, "empty": {},
        "only": [[heads[0]]],
    }  # fmt: skip


@pytest.mark.parametrize("ranks, others", [(1, 3), (3, 3), (3, 2)])
def test_objects_at_any_depth(tmp_path: Path, ranks: int, others: int) -> None:
    def first(mesh: cc.Mesh) -> Any:
        state = nested(mesh, 3)
        checkpoint.save(tmp_path, state, 1)
        return wholes(state)

    def second(mesh: cc.Mesh) -> Any:
        state = nested(mesh, 5, 3)
        assert not same(wholes(state), saved)
        found = checkpoint.load(tmp_path, state)
        return wholes(state), found.values

    saved = on(ranks, first)[0]
    for now, values in on(others, second):
        assert same(now, saved)
        assert values["model"]["note"].pop("w").tolist() == [0, 1, 2]
        assert values == {"model": {"note": {"n": 3}}, "mixed": [None, 3, None], "epoch": 3, "empty": {}}


def wholes(state: Any) -> Any:
    return [each.state_dict() for each in (state["model"]["encoder"], *state["model"]["heads"], *state["optimizers"])]


def test_a_part_of_what_is_nested(tmp_path: Path) -> None:
    """Some of the objects may be loaded; of each of these all values have to be there."""
    a, b = nn.Linear(3, 2), nn.Linear(2, 1)
    checkpoint.save(tmp_path, {"model": {"a": a, "b": [b, 1]}}, 1)
    other = nn.Linear(2, 1)
    assert checkpoint.load(tmp_path, {"model": {"b": (other,)}}).values == {"model": {"b": [None, 1]}}
    assert np.array_equal(other.weight.array, b.weight.array)
    with pytest.raises(CheckpointError, match=r"'model' is a plain value in it, no state; .* 'model/a', 'model/b/0'"):
        checkpoint.load(tmp_path, {"model": a})
    with pytest.raises(ShapeError, match=r"it has no 'model/b'; it has"):
        checkpoint.load(tmp_path, {"model": {"b": other}})
    with pytest.raises(ShapeError, match=r"has 'model/a/bias', which the objects do not have"):
        checkpoint.load(tmp_path, {"model": {"a": nn.Linear(3, 2, bias=False)}})


def test_paths_are_unambiguous(tmp_path: Path) -> None:
    """Keys that look like paths: arrays of one path used to end a save with an error of its own manifest."""
    layer = nn.Linear(1, 1)
    values = {
        "a": {"b": {"c": np.zeros(1), "c/d": np.ones(2)}, "b/c": np.full(3, 2.0), "b%2Fc": np.full(4, 3.0),
              "b@0": np.full(5, 4.0), "0": [np.full(6, 5.0)], "l": {"weight/x": 1}},
    }  # fmt: skip

    def program(mesh: cc.Mesh) -> Any:
        rank = int(mesh.ranks.rank)
        mine = {"a": {**values["a"], "b": {"c": np.full(1, float(rank)), "c/d": np.ones(2)}, "x/y": layer}}
        checkpoint.save(tmp_path, mine, 1)
        other = nn.Linear(1, 1)
        found = checkpoint.load(tmp_path, {"a": {"x/y": other}}).values["a"]
        assert np.array_equal(other.weight.array, layer.weight.array)
        return [x.tolist() for x in (found["b"]["c"], found["b"]["c/d"], found["b/c"], found["b%2Fc"], found["b@0"],
                                     found["0"][0])]  # fmt: skip

    for rank, found in enumerate(on(2, program)):
        assert found == [[rank], [1] * 2, [2] * 3, [3] * 4, [4] * 5, [5] * 6]


def test_containers_in_themselves(tmp_path: Path) -> None:
    inside: dict[str, Any] = {"n": 1}
    inside["self"] = [inside]
    with pytest.raises(ArgumentError, match=r"a/self/0/self.* is nested deeper than 96 containers, or in itself"):
        checkpoint.save(tmp_path, {"a": inside}, 1)
    deep: Any = nn.Linear(1, 1)
    for _ in range(90):
        deep = [deep, 1]
    checkpoint.save(tmp_path, {"a": deep}, 1)
    assert checkpoint.load(tmp_path, {"a": deep}).step == 1


def test_the_files_of_earlier_versions_load(tmp_path: Path) -> None:
    """They have objects at the first level only, and the keys of plain values as they are."""
    net = nn.Linear(2, 1)
    checkpoint.save(tmp_path, {"model": net, "a@b": net, "plain": {"x": {"y": np.arange(3)}}}, 1)
    manifest = tmp_path / "step-000000001" / "manifest.json"
    code = json.loads(manifest.read_bytes())["manifest"]
    assert {"model", "a@b", "plain"} == set(code["tree"])
    text = json.dumps(code).replace("plain/x/y", "plain/x@y%")  # as they wrote the key "x@y%"
    made = blake2b(text.encode(), digest_size=16).hexdigest()
    manifest.write_text(f'{{"digest": "{made}", "manifest":\n{text}\n}}\n')
    other = nn.Linear(2, 1)
    found = checkpoint.load(tmp_path, {"model": other, "a@b": net})
    assert found.values["plain"]["x"]["y"].tolist() == [0, 1, 2]
    assert np.array_equal(other.weight.array, net.weight.array)


@pytest.mark.parametrize("background", [False, True])
def test_large_values_in_blocks_and_in_parts(tmp_path: Path, background: bool) -> None:
    """Values of more bytes than are read, hashed or copied at once, and of a little less."""
    sizes = [(1 << 18) - 8, (1 << 20) + 8, (1 << 22) - 8, (1 << 22) + 8]
    values = {str(n): np.random.default_rng(n).integers(0, 99, n // 8) for n in sizes}
    saved = checkpoint.Checkpoints(tmp_path, background=background)
    saved.save(values, 1)
    first = {name: x.copy() for name, x in values.items()}
    for x in values.values():
        x += 1  # the writer has a copy
    saved.save(values, 2)
    saved.wait()
    for step, wanted in ((1, first), (2, values)) if background else ((2, values),):
        found = checkpoint.load(tmp_path, {}, step).values
        for name, x in found.items():
            assert np.array_equal(x, wanted[name]) and x.flags.writeable and x.flags.c_contiguous
            x += 1
    with disk.Reader(saved.directory.of_step(2), saved.directory.manifest(2).files) as reader:
        source = loading.FileSource(saved.directory.manifest(2), reader, True)
        name = str(sizes[3])
        part = source.value(name)[(slice(5, -7),)]
        assert np.array_equal(part, values[name][5:-7])


# -- explain -----------------------------------------------------------------------------------------------------------
OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1), "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "amsgrad": lambda p: optim.Adam(p, amsgrad=True), "Adagrad": lambda p: optim.Adagrad(p, lr=0.1),
    "centred": lambda p: optim.RMSprop(p, momentum=0.9, centered=True), "LARS": lambda p: optim.LARS(p, lr=0.1),
    "LAMB": optim.LAMB, "groups": lambda p: optim.SGD([{"params": p[:1], "momentum": 0.9}, {"params": p[1:]}], lr=0.1),
    "Offload": lambda p: optim.Offload(optim.AdamW, p),
    "MasterWeights": lambda p: optim.MasterWeights(optim.AdamW, p, scaler=optim.LossScaler(1.0)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_explain_counts_what_a_first_step_will_make(tmp_path: Path, name: str, dtype: str) -> None:
    def program(mesh: cc.Mesh) -> None:
        random.seed(0)
        run = Parallel(mesh, lambda p, _: OPTIMIZERS[name](p), zero=1 if mesh.ranks.size == 3 else 0, dtype=dtype)
        objects = {"run": [run.model, run.optimizer]}
        before = checkpoint.explain(objects)
        held = getattr(run.optimizer, "optimizer", run.optimizer).state_lists()
        assert all(v is None or v.__class__ is int for values in held for v in values)  # nothing was changed
        run.step(0)
        checkpoint.save(tmp_path, objects, int(mesh.ranks.size))
        assert repr(checkpoint.explain(objects)).split("exchanges")[0] == repr(before).split("exchanges")[0]
        manifest = checkpoint.Checkpoints(tmp_path).directory.manifest(int(mesh.ranks.size))
        pieces = [p for v in manifest.values.values() for p in v.pieces if p.file == mesh.ranks.rank]
        assert before.written_bytes == sum(p.end - p.begin for p in pieces)
        assert before.values > 2 or name == "SGD"

    for ranks in (1, 2, 3):
        on(ranks, program)
