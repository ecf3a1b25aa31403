"""Files: several objects in one, what they hold, parts that another world refuses, and runs that resume bitwise."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import data, nn, optim, random
from autograd.errors import ArgumentError, LayoutError, OptionError, ShapeError
from autograd.optim import schedules
from parallel import DataParallel

X = np.random.default_rng(0).standard_normal((22, 4))
SET = data.TensorDataset(X, (X.sum(1) > 0).astype(int))


class Holder(nn.Module):
    def __init__(self, *weights: ag.Parameter):
        for i, w in enumerate(weights):
            setattr(self, f"w{i}", w)


class Run:
    """All that a run consists of: a model with dropout, Adam with a schedule, and a loader that shuffles."""

    def __init__(self, seed: int = 0):
        random.seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 5, dtype=float), nn.Dropout(0.3), nn.Linear(5, 2, dtype=float))
        lr = schedules.one_cycle_lr(0.05, 12)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=lr)
        self.loader = data.DataLoader(SET, 5, shuffle=True, axis="dp", num_workers=1)
        self.objects = {"model": self.model, "optimizer": self.optimizer, "loader": self.loader, "random": random}

    def train(self, steps: int) -> list[float]:
        net, losses = DataParallel(self.model, "dp"), []
        while len(losses) < steps:
            for x, y in self.loader:
                self.optimizer.zero_grad()
                with ag.Tape() as tape:
                    rows = nn.cross_entropy(net(x), y, reduction="none").sum()
                    loss = cc.all_reduce(rows, "dp", to=cc.I) / y.global_shape[0]
                tape.backward(loss)
                self.optimizer.step()
                losses.append(loss.item())
                if len(losses) == steps:
                    break
        return losses


def on(ranks: int, body: Any) -> list[Any]:
    def program() -> Any:
        with cc.Mesh(dp=ranks):
            return body()

    return cc.run(program, ranks)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("taken", [3, 5, 7])
def test_a_run_resumes_bitwise(tmp_path: Path, ranks: int, taken: int) -> None:
    def whole() -> Any:
        run = Run()
        return run.train(11), run.model.state_dict(), run.optimizer.state_dict()

    def begin() -> Any:
        run = Run()
        losses = run.train(taken)
        if int(cc.world().rank) == 0:
            nn.save({**run.objects, "losses": losses}, tmp_path / "run.npz")
        return losses

    def resume() -> Any:
        run = Run(seed=5)  # other weights and another seed, which the file replaces
        plain = nn.load(run.objects, tmp_path / "run.npz")
        return plain["losses"] + run.train(11 - taken), run.model.state_dict(), run.optimizer.state_dict()

    right = on(ranks, whole)[0]
    on(ranks, begin)
    for found in on(ranks, resume):
        assert found[0] == right[0]
        assert all((found[1][name] == value).all() for name, value in right[1].items())
        assert found[2]["steps"] == 11 and pickle.dumps(found[2]) == pickle.dumps(right[2])
    for losses, model, _ in on(2, resume):  # the same batches, masks and rates; sums are rounded in another order
        np.testing.assert_allclose(losses, right[0], rtol=1e-12)
        assert all(np.allclose(model[name], value, rtol=1e-10) for name, value in right[1].items())


@pytest.mark.parametrize("without", ["optimizer", "loader", "random"])
def test_what_a_run_lacks_without_one_of_its_states(tmp_path: Path, without: str) -> None:
    def program() -> Any:
        run = Run()
        run.train(3)
        nn.save({name: x for name, x in run.objects.items() if name != without}, tmp_path / "run.npz")
        right = run.train(1)  # breaks off the epoch, as below
        other = Run()
        nn.load({name: x for name, x in other.objects.items() if name != without}, tmp_path / "run.npz")
        if without != "loader":
            run.loader.position = 0
        return right, other.train(1)

    ((right, found),) = on(1, program)
    assert right != found


def test_contents_say_what_is_whole_and_what_is_a_part(tmp_path: Path) -> None:
    def program() -> None:
        with cc.Mesh(tp=2, pp=2) as mesh:
            rank = int(mesh.ranks.rank)
            whole = cc.shard(ag.tensor(np.ones((5, 3), "float32"), {"tp": cc.R, "pp": cc.R}), "tp")
            own = ag.Parameter(np.full(2, 1.0 + rank), {"pp": cc.V})
            model = Holder(ag.Parameter(whole), own, ag.Parameter(np.zeros(3)))
            optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            nn.save(model, tmp_path / f"{rank}.npz")
            nn.save({"model": model, "optimizer": optimizer}, tmp_path / f"run{rank}.npz")

    cc.run(program, 4)
    found = nn.contents(tmp_path / "1.npz")
    assert [repr(x) for x in found.values()] == [
        "float32[5, 3], whole, saved from {tp: Shard(0), pp: I}",
        "float64[2], of the rank at pp: 1 of 2 alone",
        "float64[3], whole, saved from {tp: I, pp: I}",
    ]
    assert [x.is_part for x in found.values()] == [False, True, False]
    assert found["w0"].shape == (5, 3) and found["w1"].places == {"pp": (1, 2)}
    with np.load(tmp_path / "1.npz") as file:
        assert file.files == ["w0", "w1", "w2"] and file["w0"].shape == (5, 3)
    both = nn.contents(tmp_path / "run1.npz")
    assert both["model/w1"].is_part and not both["model/w0"].is_part
    assert all(x.is_part == name.endswith("1") for name, x in both.items() if name.startswith("optimizer"))


def test_contents_list_what_is_no_array(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    plain = {"best": float("inf"), "text": "first", "none": None, "rates": [0.1, np.ones(2)], "pair": (1, True),
             "scalar": np.float32(2), "deep": {"on": False, "empty": []}}  # fmt: skip
    loader = data.DataLoader(data.TensorDataset(np.ones((4, 2))), 2)
    objects = {"model": model, "optimizer": optim.SGD(model.parameters(), 0.1), "loader": loader, "random": random}
    nn.save({**objects, **plain}, tmp_path / "run.npz")
    found = {name: repr(x) for name, x in nn.contents(tmp_path / "run.npz").items()}
    assert {name.partition("/")[0] for name in found} == {*objects, *plain}
    shown = {"best": "float", "text": "str of length 5", "none": "None", "rates": "list of length 2",
             "rates/1": "float64[2], whole", "pair": "tuple of length 2", "scalar": "float32[], whole",
             "deep/on": "bool", "deep/empty": "list of length 0", "model/weight": "float32[2, 1], whole"}  # fmt: skip
    assert shown.items() <= found.items(), found
    assert found["loader/position"] == found["random/seed"] == "int"
    assert not any(x.is_part for x in nn.contents(tmp_path / "run.npz").values())


def test_a_part_is_refused_in_another_world(tmp_path: Path) -> None:
    """It used to be taken for the whole value where the place alone was the same, or without the axis."""

    def stage(n: int, save: bool) -> Any:
        def program() -> Any:
            with cc.Mesh(pp=n) as mesh:
                rank = int(mesh.ranks.rank)
                model = Holder(ag.Parameter(np.full(2, float(save) + rank), {"pp": cc.V}))
                optimizer = optim.Adam(model.parameters(), lr=0.0)
                if save:
                    model.w0.grad = ag.tensor(np.ones(2), {"pp": cc.V})
                    optimizer.step()
                    nn.save(model, tmp_path / f"{rank}.npz")
                    nn.save({"optimizer": optimizer, "random": random}, tmp_path / f"optimizer{rank}.npz")
                    return None
                with pytest.raises(LayoutError, match="axis 'pp' had 2 ranks") as error:
                    nn.load(model, tmp_path / "0.npz")
                with pytest.raises(LayoutError, match="axis 'pp' had 2 ranks"):
                    nn.load({"optimizer": optimizer}, tmp_path / "optimizer0.npz")
                nn.load({"random": random}, tmp_path / "optimizer0.npz")  # which is no part
                assert (model.w0.numpy() == rank).all()
                model.load_state_dict(dict(np.load(tmp_path / "0.npz")))  # the second fix
                return str(error.value), model.w0.numpy().tolist()

        return cc.run(program, n)

    stage(2, True)
    for n in (1, 3):
        for text, loaded in stage(n, False):
            assert f"and now has {n}" in text and "fix: load it with" in text and "test_saving.py:" in text
            assert loaded == [1, 1]
    with pytest.raises(LayoutError, match="now is none on which"):
        nn.load(Holder(ag.Parameter(np.zeros(2))), tmp_path / "0.npz")

    def begins_with_one_value() -> Any:  # a whole value may be the beginning of different ones
        with cc.Mesh(pp=2):
            model = Holder(ag.Parameter(np.zeros(2), {"pp": cc.V}))
            nn.load(model, tmp_path / "whole.npz")
            return model.w0.numpy().tolist()

    nn.save(Holder(ag.Parameter(np.ones(2))), tmp_path / "whole.npz")
    assert cc.run(begins_with_one_value, 2) == [[1, 1], [1, 1]]


def test_plain_values_come_back(tmp_path: Path) -> None:
    plain = {
        "n": 3, "x": 0.1, "worst": float("inf"), "text": "a", "none": None, "flag": True, "big": 2**70,
        "nested": {"pair": (1, [2.5, "b"]), "array": np.arange(3), "state": {"array": 1}}, "scalar": np.float32(0.1),
    }  # fmt: skip
    nn.save(plain, tmp_path / "plain.npz")
    found = nn.load({}, tmp_path / "plain.npz")
    assert found.keys() == plain.keys() and found["nested"].pop("array").tolist() == [0, 1, 2]
    assert {**found, "nested": found["nested"]} == {**plain, "nested": {"pair": (1, [2.5, "b"]), "state": {"array": 1}}}
    assert found["scalar"].dtype == "float32" and type(found["flag"]) is bool
    for wrong, error in (({"f": print}, ArgumentError), ({"a/b": 1}, ArgumentError), ({"d": {1: 2}}, ArgumentError),
                         ({"o": np.array([None])}, ag.DtypeError), ([1], ArgumentError)):  # fmt: skip
        with pytest.raises(error):
            nn.save(wrong, tmp_path / "wrong.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["plain.npz"]
    for kind in (np.random.PCG64, np.random.MT19937):  # the state of a generator of NumPy
        rng, other = np.random.Generator(kind(1)), np.random.Generator(kind(2))
        rng.normal()
        nn.save({"rng": rng.bit_generator.state}, tmp_path / "plain.npz")
        other.bit_generator.state = nn.load({}, tmp_path / "plain.npz")["rng"]
        assert (other.normal(size=3) == rng.normal(size=3)).all()
    with cc.Mesh(dp=1):
        with pytest.raises(LayoutError, match=r"save: loss .* Partial"):
            nn.save({"loss": ag.tensor(1.0, {"dp": cc.P})}, tmp_path / "wrong.npz")
        nn.save({"loss": ag.tensor(1.0, {"dp": cc.I})}, tmp_path / "right.npz")


def test_objects_that_a_file_does_not_have(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    nn.save(model, tmp_path / "model.npz")
    nn.save({"net": model, "optimizer": optimizer, "step": 3}, tmp_path / "run.npz")
    with pytest.raises(ShapeError, match="one module.*\n  fix: nn.load.model, path."):
        nn.load({"net": model}, tmp_path / "model.npz")
    with pytest.raises(ShapeError, match=r"\['net', 'optimizer'\]; a Linear was given\n  fix: nn.load\({'net': model}"):
        nn.load(model, tmp_path / "run.npz")
    with pytest.raises(ShapeError, match="missing: .'model'"):
        nn.load({"model": model}, tmp_path / "run.npz")
    other = nn.Linear(2, 1)
    assert nn.load({"net": other}, tmp_path / "run.npz") == {"step": 3}  # the model alone, to use it
    assert (other.weight.numpy() == model.weight.numpy()).all()


def test_random_state_is_saved_in_any_format() -> None:
    random.seed(7)
    random.next_key("dropout")
    states = random.state_dict(), random.get_state()
    right = random.next_key("dropout")
    random.seed(0)
    random.load_state_dict(states[0])
    assert random.next_key("dropout") == right
    for again in (pickle.loads(pickle.dumps(states[1])), copy.deepcopy(states[1])):
        random.set_state(again)
        assert random.next_key("dropout") == right and again == states[1]
    with pytest.raises(OptionError, match="random.state_dict"):
        random.load_state_dict({"seed": 1})


def test_a_buffer_that_is_a_constant_stays_one(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            self.register_buffer("mask", ag.constant(np.tri(3, dtype=bool)))

        def forward(self, x: Any) -> Any:
            return x.masked_fill(self.mask == 0, 0.0)

    model = Masked()
    assert isinstance(model.mask, ag.Tensor) and list(model.state_dict()) == ["mask"]
    nn.save(model, tmp_path / "m.npz")
    nn.load(model, tmp_path / "m.npz")
    x = np.arange(9.0).reshape(3, 3)

    def run() -> Any:
        with cc.Mesh(dp=-1):
            mine = Masked()
            mine.load_state_dict(model.state_dict())
            y = mine(ag.tensor(x, {"dp": cc.I}))
            assert y.layout["dp"] is cc.I
            return y.numpy()

    for y in cc.run(run, 2):
        assert (y == np.tril(x)).all()
