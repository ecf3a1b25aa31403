"""`Replicas` finds flipped bits, names their rank, and repairs them from the majority."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.errors import OptionError, ReplicaMismatch, ReplicaWarning
from autograd.whole import in_pieces
from collectives.testing import faults
from parallel import DataParallel
from parallel.checkpoint.tree import encode
from parallel.elastic import Difference, Replicas

from ...collectives.launch import launch_command
from ..checkpoint.layouts import LAYOUTS, batch, ranks_of, trainer


def flip(array: Any, seed: int = 0) -> None:
    """Flip a bit of an array in its place."""
    rng = np.random.default_rng(seed)
    bits = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    bits[rng.integers(bits.size)] ^= 1 << int(rng.integers(8))
    array[...] = bits.view(array.dtype).reshape(array.shape)


def trained(steps: int = 2, make: Any = optim.Adam, **options: Any) -> tuple[Any, Any]:
    """A model and its optimizer after some steps, on the mesh that is current."""
    net = DataParallel(nn.Sequential(nn.Linear(3, 4, key=random.Key(0), dtype=float), nn.Tanh(),
                                     nn.Linear(4, 2, key=random.Key(1), dtype=float)),
                       options.pop("axis", "dp"), **options)  # fmt: skip
    adam = make(net.parameters(), lr=0.1)
    for step in range(steps):
        step_of(net, adam, step)
    return net, adam


def step_of(net: Any, adam: Any, step: int) -> None:
    names = (*net.replicate, net.axis) if net.replicate else (net.axis,)
    net.zero_grad()
    with ag.Tape() as tape:
        x = random.normal(random.Key(2).at(step).along(*names), (4, 3))
        loss = cc.all_reduce((net(x) ** 2).sum(), names, to=cc.I)
        loss = adam.scale(loss) if isinstance(adam, optim.MasterWeights) else loss
    tape.backward(loss)
    adam.step()


def arrays(net: Any, adam: Any) -> dict[str, Any]:
    """The arrays of this rank by their paths in a checkpoint."""
    with in_pieces():
        model, state = net.state_dict(), adam.state_dict()
    found = {f"net/{name}": piece.array for name, piece in model.items()}
    names = [name for names in state["names"] for name in names]
    for slot, values in state.items():
        for name, value in zip(names, values, strict=True) if isinstance(values, list) and slot != "names" else ():
            if value is not None and not isinstance(value, int):
                found[f"adam/{slot}/{name}"] = value.array
    return found


def frozen(found: dict[str, Any]) -> dict[str, bytes]:
    return {path: array.tobytes() for path, array in found.items()}


def restore(found: dict[str, Any], before: dict[str, bytes]) -> None:
    """Undo all flips: the end of a mesh's block compares the replicas, too."""
    for path, array in found.items():
        array[...] = np.frombuffer(before[path], array.dtype).reshape(array.shape)


@pytest.fixture
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplicaWarning)
        yield


# -- the majority ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [3, 4, 5, 7])
def test_a_flipped_bit_is_repaired(ranks: int) -> None:
    wrong = ranks - 2

    def program() -> list[Difference]:
        with cc.Mesh(dp=ranks) as mesh:
            net, adam = trained()
            before = frozen(arrays(net, adam))
            replicas = Replicas({"net": net, "adam": adam}, every=5)
            if mesh.ranks.rank == wrong:
                flip(net.module[0].weight.array, ranks)
            assert replicas.check(11) == []  # not its turn
            found = replicas.check(10)
            assert frozen(arrays(net, adam)) == before
            assert replicas.check(15) == []
            return found

    with pytest.warns(ReplicaWarning) as said:
        found = cc.run(program, ranks)
    others = ", ".join(str(rank) for rank in range(ranks) if rank != wrong)
    assert len(said) == 1
    assert (
        f"Replicas.check, step 10: net/0.weight is one value for ranks {', '.join(map(str, range(ranks)))} (axis 'dp'),"
        f" and on rank {wrong} it is another one than on ranks {others}. It has been repaired from rank 0\n"
    ) in str(said[0].message)
    assert found == [found[0]] * ranks
    assert [(each.path, each.axes, each.others) for each in found[0]] == [("net/0.weight", "dp", (wrong,))]


def test_random_flips_on_random_ranks(quiet: None) -> None:
    """Whether and from whom each value is repaired is what counting says."""
    known: set[str] = set()

    def program(seed: int, ranks: int) -> str:
        rng = np.random.default_rng([4, seed])
        with cc.Mesh(dp=ranks) as mesh:
            net, adam = trained(1)
            mine = arrays(net, adam)
            flips = {path: rng.integers(0, 3, ranks) * (rng.random(ranks) < 0.4) for path in sorted(mine)
                     if rng.random() < 0.3}  # fmt: skip
            before, me = frozen(mine), int(mesh.ranks.rank)
            for path, kinds in flips.items():
                if kinds[me]:
                    flip(mine[path], int(kinds[me]))
            flipped = frozen(mine)
            counts = {path: Counter(kinds.tolist()).most_common(1)[0] for path, kinds in flips.items()}
            differ = {path for path, kinds in flips.items() if len(set(kinds.tolist())) > 1}
            decided = all(2 * counts[path][1] > ranks for path in differ)
            try:
                found = Replicas({"net": net, "adam": adam}).check(0)
            except ReplicaMismatch:
                assert not decided and frozen(arrays(net, adam)) == flipped  # nothing was repaired
                restore(mine, before)
                return "refused"
            assert decided and {each.path for each in found} == differ
            after = frozen(arrays(net, adam))
            for path in after:
                if path in differ and counts[path][0] == 0:
                    assert after[path] == before[path]
            everyone = mesh.ranks.exchange(b"".join(after[path] for path in sorted(after)))
            assert len(set(everyone)) == 1
            return "repaired" if found else "equal"

    for seed in range(40):
        ranks = 2 + seed % 6
        outcomes = set(cc.run(program, ranks, seed, ranks))
        assert len(outcomes) == 1
        known |= outcomes
    assert known == {"refused", "repaired", "equal"}


@pytest.mark.parametrize("make", [
    optim.SGD, optim.Adagrad, optim.RMSprop, optim.AdamW, optim.LARS, optim.LAMB, partial(optim.Offload, optim.Adam),
    partial(optim.MasterWeights, optim.Adam),
], ids=lambda make: getattr(make, "__name__", None) or make.func.__name__)  # fmt: skip
def test_the_state_of_each_optimizer_is_repaired(make: Any, quiet: None) -> None:
    def program() -> tuple[int, int]:
        with cc.Mesh(dp=3) as mesh:
            net, optimizer = trained(make=make)
            objects = {"net": net, "optimizer": optimizer}
            mine = {id(piece.array): piece.array for piece, _ in encode(objects).pieces.values()}  # masters share some
            before = [array.tobytes() for array in mine.values()]
            if mesh.ranks.rank == 2:
                for seed, array in enumerate(mine.values()):
                    flip(array, seed)
            found = Replicas(objects).check(0)
            assert [array.tobytes() for array in mine.values()] == before
            return len({each.path for each in found}), len(encode(objects).pieces)

    found = cc.run(program, 3)
    assert found[0][0] == found[0][1] >= 4


@pytest.mark.parametrize(("ranks", "wrong"), [(2, {1: 1}), (4, {1: 1, 2: 1}), (3, {1: 1, 2: 2})])
def test_without_a_majority_it_is_an_error(ranks: int, wrong: dict[int, int]) -> None:
    def program() -> str:
        with cc.Mesh(dp=ranks) as mesh:
            net, adam = trained(1)
            rank, right = int(mesh.ranks.rank), frozen(arrays(net, adam))
            if rank in wrong:
                flip(net.module[2].bias.array, wrong[rank])
            before = frozen(arrays(net, adam))
            with pytest.raises(ReplicaMismatch) as raised:
                Replicas({"net": net, "adam": adam}).check(3)
            assert frozen(arrays(net, adam)) == before
            restore(arrays(net, adam), right)
            return str(raised.value)

    texts = cc.run(program, ranks)
    assert texts == [texts[0]] * ranks
    assert "step 3: net/2.bias is one value for ranks 0, 1" in texts[0]
    assert "and none is that of more than half of them; digests: " in texts[0]
    assert "fix: go on from the last checkpoint" in texts[0]


def test_without_repair_it_is_an_error_that_names_the_rank() -> None:
    def program() -> str:
        with cc.Mesh(dp=3) as mesh:
            net, adam = trained(1)
            before = frozen(arrays(net, adam))
            if mesh.ranks.rank == 2:
                for each in arrays(net, adam).values():
                    flip(each)
            with pytest.raises(ReplicaMismatch) as raised:
                Replicas({"net": net, "adam": adam}, repair=False).check(0)
            restore(arrays(net, adam), before)
            return str(raised.value)

    (text, *_) = cc.run(program, 3)
    assert "and on rank 2 it is another one than on ranks 0, 1\n" in text
    assert "and 11 more values differ: " in text and text.count(" on rank 2, ") == 8 and "repair=True" in text


def test_an_array_that_cannot_be_written_is_an_error_on_all_ranks() -> None:
    def program() -> None:
        with cc.Mesh(dp=3) as mesh:
            net, adam = trained(1)
            weight, before = net.module[0].weight, frozen(arrays(net, adam))
            if mesh.ranks.rank == 1:
                flip(weight.array)
                weight.array.flags.writeable = False
            with pytest.raises(ReplicaMismatch, match="could not be written: an array is read-only"):
                Replicas({"net": net}).check(0)
            weight.array.flags.writeable = True
            restore(arrays(net, adam), before)

    cc.run(program, 3)


# -- layouts -----------------------------------------------------------------------------------------------------------
def test_each_part_of_tensor_parallelism_has_its_replicas(quiet: None) -> None:
    """A divided weight is compared along dp, one that is whole along both axes."""

    def program() -> Any:
        made = trainer({"dp": 3, "tp": 2})
        made.step(*batch(0))
        rank = int(made.mesh.ranks.rank)
        before = {name: p.array.copy() for name, p in made.parameters.items()}
        up, norm = (next(n for n in before if n.endswith(end)) for end in ("mlp.up.weight", "norm.weight"))
        if rank == 3:  # dp=1, tp=1
            flip(made.parameters[up].array)
        if rank == 2:  # another part of it
            flip(made.parameters[up].array, 1)
        if rank == 5:
            flip(made.parameters[norm].array)
        found = Replicas(made).check(made.steps)
        for name, p in made.parameters.items():
            assert np.array_equal(p.array, before[name]), name
        return [(each.path.rpartition("/")[2] == up, each.axes, each.ranks, each.others) for each in found]

    found = cc.run(program, 6)
    assert found == [found[0]] * 6
    assert sorted(found[0]) == [
        (False, "dp*tp", (0, 1, 2, 3, 4, 5), (5,)), (True, "dp", (0, 2, 4), (2,)), (True, "dp", (1, 3, 5), (3,)),
    ]  # fmt: skip


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_has_replicas_along_its_second_axis(zero: int, quiet: None) -> None:
    def program(is_hit: bool) -> Any:
        with cc.Mesh(out=3, dp=2) as mesh:
            net, adam = trained(zero=zero, replicate="out")
            found = []
            if is_hit:
                mine, rank = arrays(net, adam), int(mesh.ranks.rank)
                for k, path in ((1, "net/0.weight"), (4, "net/2.weight"), (4, next(p for p in mine if "adam" in p))):
                    if rank == k:
                        flip(mine[path])
                found = Replicas({"net": net, "adam": adam}).check(0)
            step_of(net, adam, 2)
            return frozen(arrays(net, adam)), {(each.others, each.ranks) for each in found}

    hit, calm = cc.run(program, 6, True), cc.run(program, 6, False)
    assert [state for state, _ in hit] == [state for state, _ in calm]
    assert hit[0][1] == {((1,), (1, 3, 5)), ((4,), (0, 2, 4))}


def test_alone_and_without_replicas_nothing_is_compared() -> None:
    net = nn.Linear(2, 1)
    assert Replicas(net).check(0) == []

    def program() -> Any:
        with cc.Mesh(dp=2):
            net, adam = trained(1, zero=3)
            for each in arrays(net, adam).values():
                if each.size and each.ndim == 2:
                    flip(each, 1)
            return Replicas({"net": net, "adam": adam}).check(0)

    assert cc.run(program, 2) == [[], []]


@pytest.mark.parametrize("every", [0, -1, True, 2.0])
def test_wrong_arguments(every: Any) -> None:
    with pytest.raises(OptionError, match="Replicas: every="):
        Replicas({}, every=every)
    assert repr(Replicas({"net": nn.Linear(1, 1)}, every=3)) == "Replicas(net, every=3, repair=True)"


# -- processes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("on", ["here", "openmpi"])
def test_over_mpi(on: str) -> None:
    outcome = launch_command(["-m", __name__], 3, limit_s=60, on=on)
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines() == ["[('net/0.weight', (1,)), ('net/2.bias', (2,))] True"]
    assert outcome.err.count("It has been repaired from rank 0") == 2


def main() -> None:
    """Flip bits on two of three ranks, and print what was repaired."""
    with cc.Mesh(dp=3) as mesh:
        net, adam = trained()
        before, rank = frozen(arrays(net, adam)), int(mesh.ranks.rank)
        for k, name in ((1, "net/0.weight"), (2, "net/2.bias")):
            if rank == k:
                flip(arrays(net, adam)[name])
        found = Replicas({"net": net, "adam": adam}).check(0)
        is_as_before = mesh.ranks.exchange(b"1" if frozen(arrays(net, adam)) == before else b"0")
        if rank == 0:
            print([(each.path, each.others) for each in found], b"0" not in is_as_before)


if __name__ == "__main__":
    main()


# -- values of the last step -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("zero", [1, 2])
@pytest.mark.parametrize("ranks, rank", [(2, 1), (2, 0), (3, 2), (5, 0)])
def test_a_corrupted_gather_is_found(ranks: int, rank: int, zero: int) -> None:
    """The gathered parameters are copies that are no state; a step with a wrong one spoils all parameters."""

    def program(at: int) -> Any:
        with cc.Mesh(dp=ranks):
            net, adam = trained(1, zero=zero)
            replicas = Replicas({"run": {"net": net, "adam": adam}})
            assert replicas.check(0) == []  # from here on the parts that are sent are known, too
            with faults.injected(faults.Corrupt(rank, at=at, of="all_gather")):
                step_of(net, adam, 1)
            try:
                replicas.check(1)
                return None
            except ReplicaMismatch as error:
                step_of(net, adam, 2)  # which gathers again
                assert replicas.check(2) == []
                return str(error)

    texts = cc.run(program, ranks, 1)
    assert len(set(texts)) == 1
    assert "net/" in texts[0] and ", as gathered from rank " in texts[0] and "fix: go on from the last" in texts[0]
    if ranks > 2:
        assert f"on rank {rank} it is another one than on ranks" in texts[0]


@pytest.mark.parametrize("name", ["dp3", "dp2 zero 1", "tp2", "pp2", "cp2", "pp2 dp2 zero 1"])
def test_a_corrupted_loss_of_a_trainer_is_found(name: str) -> None:
    layout = LAYOUTS[name]
    ranks = ranks_of(layout)

    def program() -> list[str]:
        made = trainer(layout)
        replicas, texts = Replicas({"trainer": made}), []
        for step in range(3):
            made.step(*batch(step))
            assert replicas.check(step) == []
        if made.mesh.ranks.rank == ranks - 1:
            made.last_loss = float(np.nextafter(made.last_loss, 9))
        try:
            replicas.check(3)
        except ReplicaMismatch as error:
            texts.append(str(error))
        return texts

    for texts in cc.run(program, ranks):
        assert len(texts) == 1
        assert texts[0].startswith("Replicas.check, step 3: trainer, the loss is one value for rank")
