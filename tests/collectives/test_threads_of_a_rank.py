"""Other threads of a rank: random keys, and collectives without the mesh of the thread that entered it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, random
from collectives import I, R, V

pytestmark = pytest.mark.timeout(60)
X = np.random.default_rng(0).standard_normal((4, 6))


def test_a_worker_without_a_seed_gets_no_key() -> None:
    with ThreadPoolExecutor(2) as pool:
        for call in (lambda: random.next_key("dropout"), lambda: nn.dropout(X, 0.5), lambda: nn.Linear(2, 2)):
            with pytest.raises(ag.OptionError, match="has set no seed") as error:
                pool.submit(call).result()
            assert "test_threads_of_a_rank.py:" in str(error.value)


def test_keys_that_are_made_before_are_the_same_on_all_ranks_and_in_any_order() -> None:
    """The fix that the error offers."""

    def program() -> Any:
        random.seed(3)
        key = random.next_key("dropout")
        with ThreadPoolExecutor(3) as pool:
            tasks = [lambda i=i: nn.dropout(X, 0.5, key=key.at(i)) for i in range(6)]
            order = range(6) if int(cc.world().rank) else reversed(range(6))
            futures = {i: pool.submit(tasks[i]) for i in order}
            return [futures[i].result().tolist() for i in range(6)]

    first, second = cc.run(program, 2)
    assert first == second
    assert len({str(masked) for masked in first}) == 6

    def seeded() -> random.Key:
        random.seed(4)
        return random.next_key("w")

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(seeded).result() == random.Key(4, "w.0")


def test_ranks_that_are_threads_begin_with_seed_zero() -> None:
    assert cc.run(lambda: random.next_key("w"), 2) == [random.Key(0, "w.0")] * 2


def test_a_collective_in_another_thread_than_that_of_the_mesh() -> None:
    with cc.Mesh(dp=1), ThreadPoolExecutor(1) as pool:
        x = ag.tensor([1.0])
        with pytest.raises(cc.MeshError) as error:
            pool.submit(cc.all_reduce, x, "dp").result()
        for word in ("Mesh(dp=1) was entered in thread 'MainThread', and this is thread 'ThreadPool", "are per thread",
                     "fix: call collectives", "in the thread that entered the mesh"):  # fmt: skip
            assert word in str(error.value)
        done = pool.submit(lambda x: x * 2, x.numpy()).result()  # the fix: plain arrays in the other thread
        assert cc.all_reduce(ag.tensor(done), "dp").numpy().tolist() == [2.0]
    with pytest.raises(cc.MeshError, match="Fix: with cc.Mesh"):
        cc.all_reduce(ag.tensor([1.0]), "dp")


def test_a_rank_without_a_mesh_is_told_to_make_one() -> None:
    def program() -> Any:
        if int(cc.world().rank) == 0:
            cc.all_reduce(ag.tensor([1.0]), "dp")

    with pytest.raises(cc.MeshError, match="Fix: with cc.Mesh"):
        cc.run(program, 2)


@pytest.mark.parametrize("masked", [
    lambda x: nn.Dropout(0.5, along="dp")(x), lambda x: nn.dropout(x, 0.5, key=random.next_key("dropout").along("dp")),
])  # fmt: skip
def test_dropout_of_different_data_names_along(masked: Any) -> None:
    """The error of one mask for different data, and the whole program with each fix: the serial gradient."""

    def program() -> Any:
        with cc.Mesh(dp=2) as mesh:
            rows = ag.tensor(X[2 * int(mesh.ranks.rank) :][:2], {"dp": V})
            with pytest.raises(ag.LayoutError) as error:
                nn.Dropout(0.5)(rows)
            text = str(error.value)
            assert text.startswith("dropout(key, ") and "axis 'dp'" in text and "test_threads_of_a_rank.py:" in text
            assert "fix: nn.Dropout(p, along='dp'), or nn.dropout(x, p, key=key.along('dp'))" in text
            w = ag.Parameter(np.ones(6))
            with ag.Tape() as tape:
                y = masked(rows)
                loss = cc.all_reduce((y @ cc.cast(w, "dp", to=R)).sum(), "dp", to=I)
            tape.backward(loss)
            return y.numpy(), w.grad.numpy()

    (y0, g0), (y1, g1) = cc.run(program, 2)
    np.testing.assert_allclose(g0, y0.sum(axis=0) + y1.sum(axis=0))
    assert np.array_equal(g0, g1) and ((y0 == 0) != (y1 == 0)).any()
