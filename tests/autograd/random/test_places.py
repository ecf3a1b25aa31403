"""Draws for values of which each rank holds several pieces, against the same elements of the whole draw."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, random
from autograd.errors import DtypeError, LayoutError, ShapeError
from autograd.random import keys

SHAPE = (3, 12, 5)
PIECES = [[slice(0, 2), slice(10, 12)], [slice(2, 4), slice(8, 10)], [slice(4, 8)]]


def held(rank: int) -> Any:
    return np.concatenate([np.arange(p.start, p.stop) for p in PIECES[rank]])


@pytest.mark.parametrize("draw", [
    lambda key, x: random.uniform(key, x), lambda key, x: random.normal(key, x, dtype=np.float32),
    lambda key, x: random.bernoulli(key, x, 0.3), lambda key, x: random.integers(key, x, 0, 1000),
])  # fmt: skip
def test_a_rank_draws_its_pieces(draw: Any) -> None:
    key = random.Key(3, "mask")
    whole = draw(key, SHAPE)

    def program() -> None:
        with cc.Mesh(cp=3) as mesh:
            rank = mesh.ranks.index
            x = ag.tensor(np.zeros((3, 4, 5)))
            found = draw(key.placed("cp", 1, PIECES[rank], 12), x)
            assert found.layout["cp"] is cc.V
            assert found.local.tobytes() == whole[:, held(rank)].tobytes()

    cc.run(program, 3)


@pytest.mark.parametrize("names", [("cp", "tp"), ("tp", "cp")])
def test_another_axis_divides_the_concatenation(names: tuple[str, str]) -> None:
    """Sequence parallelism inside of the pieces: parts of 2, 1 and 1 of the 4 elements that cross a border."""
    key, cuts = random.Key(4, "mask"), [0, 3, 4]
    whole = random.uniform(key, SHAPE)

    def program() -> None:
        with cc.Mesh(**{names[0]: -1, names[1]: 2 if names[1] == "tp" else 3}) as mesh:
            cp, tp = mesh.axis("cp").group.index, mesh.axis("tp").group.index
            mine = held(cp)[cuts[tp] : cuts[tp + 1]]
            x = cc.from_local(np.zeros((3, len(mine), 5)), {"tp": cc.Shard(1), "cp": cc.V})
            found = random.uniform(key.placed("cp", 1, PIECES[cp], 12), x)
            assert found.layout["cp"] is cc.V and found.layout["tp"] == cc.Shard(1)
            assert found.local.tobytes() == whole[:, mine].tobytes()

    cc.run(program, 6)


def test_dropout_and_its_replay_in_a_checkpoint() -> None:
    """The block has ended when backward runs the function again."""
    x = np.random.default_rng(0).normal(size=SHAPE)
    model = nn.Sequential(nn.Dropout(0.4), nn.Tanh(), nn.Dropout(0.3))

    def gradient(x: Any, block: Any = None) -> Any:
        random.seed(9)
        x = ag.tensor(x, requires_grad=True)
        with ag.Tape() as tape:
            with block or random.placed("no axis", 0, [slice(0, 1)], 1):
                y = ag.checkpoint(model)(x)
            loss = (y * y).sum()
            loss = loss if block is None else cc.all_reduce(loss, "cp", to=cc.I)
        tape.backward(loss)
        return x.grad.local if block is not None else x.grad.numpy()

    expected = gradient(x)

    def program() -> None:
        with cc.Mesh(cp=3) as mesh:
            rank = mesh.ranks.index
            ours = gradient(x[:, held(rank)], random.placed("cp", 1, PIECES[rank], 12))
            np.testing.assert_array_equal(ours, expected[:, held(rank)])
            with pytest.raises(LayoutError, match="random.placed"):
                model(ag.tensor(x[:, held(rank)]))

    cc.run(program, 3)


def test_values_that_are_not_varying_on_the_axis_are_drawn_as_without_places() -> None:
    key = random.Key(1, "weight").placed("cp", 1, [slice(0, 5)], 9)
    with cc.Mesh(cp=1, dp=1):
        for label in (cc.I, cc.R, cc.Shard(0)):
            x = cc.from_local(np.zeros((4, 3)), {"cp": label, "dp": cc.Shard(1)})
            np.testing.assert_array_equal(random.uniform(key, x).local, random.uniform(random.Key(1, "weight"), (4, 3)))
        x = ag.tensor(np.zeros((4, 3)))  # V: with a stream for each rank, places have no meaning
        own, expected = (random.uniform(k.along("cp", "dp"), x) for k in (key, random.Key(1, "weight")))
        np.testing.assert_array_equal(own.local, expected.local)


def test_keys_and_the_state_carry_places() -> None:
    key = random.Key(1, "a").placed("cp", 1, [slice(0, 2)], 4)
    assert key.fold("b").places == key.at(3).places == key.along("dp").places == key.places
    assert key.placed("cp", 0, [slice(1, 2)], 2).places[0].dim == 0 and len(key.placed("sp", 0, [], 2).places) == 2
    assert "placed=('cp',)" in repr(key)
    random.seed(0)
    with random.placed("cp", 1, [slice(0, 2)], 4):
        assert random.next_key("x").places == key.places
        state = pickle.loads(pickle.dumps(random.get_state()))
        random.seed(3)
        random.load_state_dict(random.state_dict())
        assert random.next_key("x").places == key.places
    assert random.next_key("x").places == ()
    random.set_state(state)
    assert random.next_key("x").places == key.places
    random.set_state(random.State(0))


def test_wrong_pieces_are_refused() -> None:
    key = random.Key(0, "x")
    for pieces in ([slice(0, 5)], [slice(0, 2), slice(1, 3)], [slice(0, 4, 2)], [3]):
        with pytest.raises(ShapeError, match="placed"):
            key.placed("cp", 0, pieces, 4)
    with pytest.raises(ShapeError, match="dim >= 0"):
        key.placed("cp", -1, [], 4)
    with pytest.raises(DtypeError, match="axis"):
        key.placed(0, 0, [], 4)
    with cc.Mesh(cp=1):
        x = ag.tensor(np.zeros((3, 4)))
        for placed in (key.placed("cp", 1, [slice(0, 3)], 9), key.placed("cp", 2, [slice(0, 4)], 9)):
            with pytest.raises(ShapeError, match="axis 'cp'"):
                random.uniform(placed, x)


def test_keys_below_a_key_are_those_of_a_state_of_its_seed() -> None:
    """Also in a `placed` block inside, which adds its pieces; and the state outside is as it was."""
    held = keys.hold_state()

    def made(begin: Callable[[], Any]) -> list[keys.Key]:
        with begin():
            found = [keys.next_key("mask"), keys.next_key("noise")]
            with keys.placed("cp", 1, [slice(0, 2), slice(6, 8)], 8):
                found.append(keys.next_key("mask"))
            return [*found, keys.next_key("mask")]

    @contextmanager
    def begun() -> Iterator[None]:
        keys.begin_state(5 << 64 | 3, places, ("pp",))
        yield

    with keys.placed("sp", 0, [slice(0, 4)], 4):
        places = keys.get_state().places
    try:
        expected = made(begun)
    finally:
        keys.put_back(held)
    key = keys.Key(5 << 64, places=places, apart=("pp",))
    before = keys.get_state()
    assert made(lambda: keys.keys_below(key, 3)) == expected
    assert [len(each.places) for each in expected] == [1, 1, 2, 1]
    assert keys.get_state() == before
