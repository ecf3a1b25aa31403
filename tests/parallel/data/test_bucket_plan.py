"""Sizes of buckets that are chosen from measured times: the same on all ranks, and the same gradients."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, ops, optim
from autograd.errors import CollectiveMismatch, OptionError
from collectives.testing import slow_link
from collectives.transports.replays.recorded import Record
from collectives.transports.replays.replaying import replaying
from parallel import Bucketing, DataParallel, PowerSGD
from parallel.data import bucket_plan, buckets
from parallel.data.bucket_plan import best_sizes
from parallel.data.buckets import lay_out

WEIGHTS = ("w0", "w1", "w2", "w3", "w4")
STEPS = 7  # the sizes are chosen before the fifth


class Net(nn.Module):
    """Layers, one of which only some ranks use."""

    def __init__(self, width: int):
        rng = np.random.default_rng(0)
        for name in WEIGHTS:
            setattr(self, name, ag.Parameter(rng.normal(size=(width, width)) / width))
        self.seldom = ag.Parameter(rng.normal(size=(3, 3)))

    def forward(self, x: Any, uses: bool) -> Any:
        for name in WEIGHTS:
            x = ops.tanh(x @ getattr(self, name).astype(float))
        return (x * x).sum() + ((self.seldom * self.seldom).sum() if uses else 0.0)


def program(size: Any, width: int = 9, kind: str = "plain", gbit_per_s: float = 0.0, **options: Any) -> Any:
    """Some steps; the gradients and weights of this rank, and the sizes before and after."""
    link = slow_link(gbit_per_s, 1e-4) if gbit_per_s else contextlib.nullcontext()
    algorithm: Any = kind if kind in ("ring", "hierarchical", "reproducible") else "native"
    with link, cc.Mesh(dp=-1, algorithm=algorithm) as mesh:
        rank, n, rng = int(mesh.ranks.rank), int(mesh.ranks.size), np.random.default_rng(1)
        net = Net(width)
        if kind == "two dtypes":
            net.w0, net.w3 = (ag.Parameter(p.data.astype("f4")) for p in (net.w0, net.w3))
        model = DataParallel(net, "dp", bucket_bytes=size, **options)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        found, kept, before = [], [], model.bucketing
        for step in range(STEPS):
            if kind == "state" and step == 5:  # loaded after the choice
                model.load_state_dict({name: np.array(p) * 0.5 for name, p in model.state_dict().items()})
            rows = rng.normal(size=(4 * n, width))[rank::n]
            optimizer.zero_grad()
            with model.accumulate() if kind == "accumulate" else contextlib.nullcontext():
                for part in np.array_split(rows, 2) if kind == "accumulate" else [rows]:
                    x = ag.tensor(part, {"dp": cc.V})
                    with ag.Tape() as tape:
                        loss = cc.declare_partial(model(x, rank == 0), "dp")
                        if kind == "twice":
                            loss = loss + cc.declare_partial(model(x * 2.0, False), "dp")
                        loss = cc.all_reduce(loss, "dp", to=cc.I)
                    tape.backward(loss)
            gradients = [np.array(p.grad.data) for p in model.parameters()]
            kept.append((model.parameters()[0].grad, gradients[0]))  # a view of a bucket that is no longer used
            found += gradients
            optimizer.step()
        for view, copy in kept:
            np.testing.assert_array_equal(view.data, copy)
        return [*found, *(p.data.copy() for p in model.parameters())], before, model.bucketing


@pytest.mark.parametrize(
    "kind", ["plain", "twice", "accumulate", "ring", "hierarchical", "reproducible", "two dtypes", "state"]
)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_the_gradients_are_those_of_given_sizes(ranks: int, kind: str) -> None:
    rtol = 1e-5 if kind == "two dtypes" else 1e-12
    expected = cc.run(program, ranks, 1 << 20, 9, kind)
    found = cc.run(program, ranks, "measured", 9, kind)
    for (ours, before, after), (theirs, *_) in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-7 if rtol > 1e-9 else 1e-14)
        assert before.bucket_bytes == "measured" and isinstance(after.bucket_bytes, int)
    assert len({after for *_, after in found}) == 1


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_gradients_go_on_in_new_buckets(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one bucket to one for each parameter."""
    expected = cc.run(program, ranks, 1 << 20)
    monkeypatch.setattr(bucket_plan, "best_sizes", lambda *args: Bucketing(1, 1))
    for (ours, _, after), (theirs, *_) in zip(cc.run(program, ranks, "measured"), expected, strict=True):
        assert after == Bucketing(1, 1)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_the_link_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link of 16 MB/s, on which an all-reduce of two ranks sends each byte once; load can only make it slower."""
    seen: list[Any] = []

    def spied(divided: Any, ready_s: Any, end_s: float, latency_s: float, s_per_byte: float) -> Bucketing:
        seen.append((tuple(ready_s), end_s, latency_s, s_per_byte))
        return best_sizes(divided, ready_s, end_s, latency_s, s_per_byte)

    monkeypatch.setattr(bucket_plan, "best_sizes", spied)
    cc.run(partial(program, "measured", 64, gbit_per_s=0.128), 2)
    assert len(seen) == 2 and seen[0] == seen[1]
    ready, end, latency, per_byte = seen[0]
    assert len(ready) == 6 and all(0 < t <= end for t in ready)
    assert latency >= 1e-4 and per_byte >= 0.9 / 16e6


def test_the_choice_is_the_best_of_the_table() -> None:
    """Against all sizes tried one by one, for random gradients and links."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        parameters: Any = [ag.Parameter(np.zeros(int(n), np.float32)) for n in 10 ** rng.uniform(1, 5.5, 12)]
        ready = np.sort(rng.uniform(0, 0.05, 12)).tolist()
        latency, per_byte = 10 ** rng.uniform(-5, -2), 10 ** rng.uniform(-10, -7)
        divided = partial(lay_out, parameters, range(12))
        chosen = best_sizes(divided, ready, ready[-1], latency, per_byte)
        tried = {
            (1 << k, 1 << j): end_s(divided(1 << k, 1 << j), ready, latency, per_byte)
            for k in range(18, 26) for j in (18, 20, 23) if j <= k
        }  # fmt: skip
        assert tried[int(chosen.bucket_bytes), chosen.first_bucket_bytes] <= 1.0051 * min(tried.values())


def end_s(places: Any, ready: list[float], latency: float, per_byte: float) -> float:
    """When the last of the buckets has arrived."""
    free = 0.0
    for place in places:
        free = max(free, *(ready[i] for i in place.indices)) + latency + 4 * place.size * per_byte
    return free


def test_a_rank_that_chooses_others_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: the sizes depend on the rank."""

    def other(*args: Any) -> Bucketing:
        return Bucketing(1 << (10 if cc.world().rank else 25), 1 << 10)

    monkeypatch.setattr(bucket_plan, "best_sizes", other)
    with pytest.raises(CollectiveMismatch, match=r"buckets="):
        cc.run(partial(program, "measured", 64), 2)


def test_a_replay_chooses_the_same(tmp_path: Any) -> None:
    def recorded() -> Any:
        with cc.record(tmp_path / "run"):
            return program("measured", 64, gbit_per_s=0.05)[2]

    first = cc.run(recorded, 2)
    with replaying(Record(str(tmp_path / "run"))):
        assert cc.run(recorded, 2) == first


@pytest.mark.parametrize(
    "options, says",
    [
        ({"bucket_bytes": "auto"}, r"bucket_bytes='auto' was given; needed: an int, or 'measured'"),
        ({"bucket_bytes": "measured", "first_bucket_bytes": 5}, r"first_bucket_bytes=5.*needed: one of the two"),
        ({"bucket_bytes": "measured", "zero": 2}, r"bucket_bytes='measured' and zero=2"),
        ({"bucket_bytes": "measured", "reduction": "PowerSGD"}, r"bucket_bytes='measured' and a reduction"),
        ({"bucketing": Bucketing("measured"), "zero": 1}, r"bucket_bytes='measured' and zero=1"),
    ],
)
def test_refusals(options: dict[str, Any], says: str) -> None:
    if options.get("reduction"):
        options = {**options, "reduction": PowerSGD(rank=1)}
    with cc.Mesh(dp=1), pytest.raises(OptionError, match=says):
        DataParallel(Net(3), "dp", **options)


def test_a_dry_run_keeps_the_sizes() -> None:
    with cc.dry(ranks=64):
        assert program_of_one_step().bucket_bytes == buckets._WHILE_MEASURING


def program_of_one_step() -> Bucketing:
    with cc.Mesh(dp=-1):
        model = DataParallel(nn.Linear(4, 2), "dp", bucket_bytes="measured")
        for _ in range(6):
            with ag.Tape() as tape:
                x = cc.from_local(np.ones((2, 4), "f4"), {"dp": cc.Shard(0)})
                loss = cc.all_reduce(model(x).sum(), "dp", to=cc.I)
            tape.backward(loss)
        return model.bucketing
