"""Every algorithm, operation, number of ranks, size and dtype against the dense sum; what it sends; the tape."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autograd as ag
import collectives as cc
from autograd.errors import CollectiveMismatch, MeshError, ShapeError
from autograd.layouts.partition import parts
from collectives.algorithms import OPERATIONS, Fit, algorithms_of, count_messages, predict, table
from collectives.algorithms import fit as fitting
from collectives.algorithms.costs import candidates
from collectives.algorithms.selected import Channel, Selected
from collectives.testing import Case, Setting, check
from collectives.transports import steps
from collectives.transports.protocol import Request

from ..launch import launch
from .algorithm_cases import call, data, expected, names, uneven

SIZES = (0, 3, 61)


def verify(operation: str, algorithm: str, ranks: int, size: int, dtype: Any, counts: Sequence[int]) -> list[Any]:
    """One call in a local world against the dense reference; the ranks' traffic."""
    root = (size + ranks) % ranks
    xs = data(operation, ranks, size, dtype, counts)
    kept = [x.copy() for x in xs]
    for x in kept if operation != "broadcast" else []:
        x.flags.writeable = False

    def program() -> Any:
        return call(operation, algorithm, kept[cc.world().rank], counts, root)

    seen = cc.run(program, ranks)
    for rank, ((y, _), want) in enumerate(zip(seen, expected(operation, xs, counts, root), strict=True)):
        where = f"{operation} by {algorithm} of {size} {np.dtype(dtype)} on rank {rank} of {ranks}"
        assert (y is None) == (want is None), where
        if y is not None:
            assert y.dtype == want.dtype and np.array_equal(y, want), where
            assert y.flags.writeable and y.flags.c_contiguous, where
            assert not any(np.shares_memory(y, x) for x in kept) or (operation == "broadcast" and rank != root), where
    return [traffic for _, traffic in seen]


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_sums_and_copies_of_more_sizes(operation: str) -> None:
    for algorithm_seed in (0, 1):
        sweep(operation, (1, 2, 4, 7, 8, 9, 200), algorithm_seed)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_sums_and_copies(operation: str) -> None:
    sweep(operation, SIZES, 0)


def sweep(operation: str, sizes: Sequence[int], seed: int) -> None:
    """Every algorithm on 1 to 8 ranks, and that what it sends is what `count_messages` says."""
    for ranks in range(1, 9):
        for size in sizes:
            for k, algorithm in enumerate(names(operation)):
                counts = parts(size, ranks)[0] if (k + size + seed) % 2 else uneven(size, ranks, size)
                traffic = verify(operation, algorithm, ranks, size, np.float64, counts)
                if ranks > 1 and not algorithm.startswith(("hierarchical", "shared")):
                    root = (size + ranks) % ranks
                    for rank, seen in enumerate(traffic):
                        counted = count_messages(operation, algorithm, size, ranks, rank, dtype=np.float64,
                                                 counts=counts, root=root)  # fmt: skip
                        assert counted.peers == seen.peers, (operation, algorithm, size, ranks, rank)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.complex128, np.int32, np.bool_])
def test_dtypes(dtype: Any) -> None:
    for operation in OPERATIONS:
        for algorithm in names(operation):
            for ranks in (3, 4):
                verify(operation, algorithm, ranks, 13, dtype, parts(13, ranks)[0])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_call(draw: Any) -> None:
    operation = draw.draw(st.sampled_from(OPERATIONS))
    algorithm = draw.draw(st.sampled_from(names(operation)))
    ranks, size = draw.draw(st.integers(1, 8)), draw.draw(st.integers(0, 40))
    counts = uneven(size, ranks, draw.draw(st.integers(0, 99)))
    verify(operation, algorithm, ranks, size, draw.draw(st.sampled_from([np.float64, np.float32, np.int64])), counts)


def test_long_arrays_travel_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SEGMENT_BYTES", 32)
    for operation in OPERATIONS:
        for algorithm in names(operation):
            for ranks in (2, 3, 5, 8):
                verify(operation, algorithm, ranks, 61, np.float64, uneven(61, ranks, 1))


def test_equal_on_all_ranks() -> None:
    """R means equal copies: every rank has the same bits, whatever the order of the sum."""
    def program(algorithm: str) -> bytes:
        x = np.random.default_rng(cc.world().rank).standard_normal(37).astype(np.float32)
        return call("all_reduce", algorithm, x, (), 0)[0].tobytes()

    for algorithm in names("all_reduce"):
        for ranks in (2, 3, 6, 7, 8):
            assert len(set(cc.run(program, ranks, algorithm))) == 1, (algorithm, ranks)


# -- costs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 7, 8])
def test_costs_are_what_is_sent(ranks: int) -> None:
    """Messages and bytes of the rank that sends most, at a size that all parts divide."""
    for operation in OPERATIONS:
        for algorithm in names(operation):
            if algorithm.startswith(("hierarchical", "shared")) or algorithm == "reproducible:tree":
                continue
            for size in (840, 840 * 400):
                sent = [count_messages(operation, algorithm, size, ranks, rank) for rank in range(ranks)]
                cost = predict(operation, algorithm, size * 4, ranks, 1e-6, 1e-9, 1e-10)
                assert cost.messages == max(each.messages for each in sent), (operation, algorithm, size)
                assert cost.bytes == pytest.approx(max(each.bytes for each in sent)), (operation, algorithm, size)


def test_an_algorithm_without_a_predicted_cost_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not taken for one of the trees."""
    monkeypatch.setitem(table._TABLE["broadcast"], "star", lambda option: None)
    with pytest.raises(MeshError, match="broadcast: algorithm='star' has no predicted cost"):
        predict("broadcast", "star", 840.0, 4, 1e-6, 1e-9)


def test_formulas() -> None:
    """The table of the literature, with numbers that keep the three terms apart."""
    a, b, g, n = 1e6, 1e3, 1.0, 840.0
    for p, lg in ((2, 1), (4, 2), (8, 3)):
        share = n * (p - 1) / p
        for name, time in {
            "recursive_doubling": lg * (a + n * b + n * g),
            "tree": 2 * lg * (a + n * b) + lg * n * g,
            "ring": 2 * (p - 1) * a + 2 * share * b + share * g,
            "halving_doubling": 2 * lg * a + 2 * share * b + share * g,
        }.items():
            assert predict("all_reduce", name, n, p, a, b, g).time_s == pytest.approx(time), (name, p)
    assert predict("all_reduce", "recursive_doubling", n, 3, a, b, g).time_s == pytest.approx(
        1 * (a + n * b + n * g) + 2 * a + 2 * n * b + n * g
    )
    two = predict("all_reduce", "hierarchical:ring,ring", n, 8, a, b, 0.0, levels=[(2, 0.0, 0.0)])
    assert two.time_s == pytest.approx(2 * 3 * a + 2 * (n / 2) * 3 / 4 * b)
    with pytest.raises(MeshError, match="same number on every host"):
        predict("all_reduce", "hierarchical", n, 7, a, b, levels=[(2, 0.0, 0.0)])
    assert predict("all_reduce", "native", n, 8, a, b, g).time_s == min(
        predict("all_reduce", name, n, 8, a, b, g).time_s
        for name in ("ring", "recursive_doubling", "halving_doubling", "tree", "double_tree:1")
    )


# -- hosts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", ["AABB", "ABAB", "AAABBB", "ABBACC", "AAB", "ABBB", "AAAA", "ABCD", "AAABB"])
def test_hierarchical(hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks on hosts of any size, in any order; what crosses between hosts is exactly the formula."""
    monkeypatch.setattr(cc.Communicator, "hosts", property(lambda self: [hosts.index(hosts[r]) for r in self.ranks]))
    ranks, size = len(hosts), 24
    count = len(set(hosts))
    lanes = min(hosts.count(host) for host in hosts)
    for levels in ("native,ring", "ring,halving_doubling", "halving_doubling,recursive_doubling", "native,native"):
        algorithm = f"hierarchical:{levels}"
        traffic = verify("all_reduce", algorithm, ranks, size, np.float64, ())
        crossing = [sum(b for peer, (_, b) in seen.peers.items() if hosts[peer] != hosts[rank])
                    for rank, seen in enumerate(traffic)]  # fmt: skip
        if levels == "native,ring":
            on_lane = 2 * size * 8 / lanes * (count - 1) / count
            assert sum(crossing) == pytest.approx(on_lane * lanes * count)
            if count * lanes == ranks:
                assert crossing == pytest.approx([on_lane] * ranks)


# -- selection ---------------------------------------------------------------------------------------------------------


def total(xs: Any) -> Any:
    return [np.sum(np.stack(xs), axis=0)] * len(xs)


def tape_cases(p: int) -> Iterator[Case]:
    """Each algorithm through the registry's checks: forward, adjoint, pairing, tangent, second order."""
    shape, P, R, V, Shard = (3, 2), cc.P, cc.R, cc.V, cc.Shard(0)
    for name in algorithms_of("all_reduce"):
        yield Case(f"all_reduce {name}", ("all_reduce",), P, R,
                   lambda x, on, name=name: cc.all_reduce(x, on, algorithm=name), total, total,
                   (shape,) * p)  # fmt: skip
    counts = np.array_split(np.arange(7), p)
    for name in algorithms_of("reduce_scatter"):
        def cut(xs: Any) -> Any:
            return [total(xs)[0][part] for part in counts]

        def join(xs: Any) -> Any:
            return [np.concatenate(xs)] * len(xs)

        yield Case(f"reduce_scatter {name}", ("reduce_scatter",), P, Shard,
                   lambda x, on, name=name: cc.reduce_scatter(x, on, algorithm=name), cut, join,
                   ((7, 2),) * p)  # fmt: skip
        yield Case(f"all_gather {name}", ("all_gather",), V, R,
                   lambda x, on, name=name: cc.all_gather(x, on, algorithm=name), join, cut,
                   tuple((len(part), 2) for part in counts))  # fmt: skip
    root = p - 1
    for name in algorithms_of("reduce"):
        yield Case(f"reduce {name}", ("reduce",), P, cc.Rooted(root),
                   lambda x, on, name=name: cc.reduce(x, on, root, algorithm=name),
                   lambda xs: [y if r == root else None for r, y in enumerate(total(xs))],
                   lambda cts: [cts[root]] * p, (shape,) * p)  # fmt: skip
        yield Case(f"broadcast {name}", ("broadcast",), cc.Rooted(root), R,
                   lambda x, on, name=name: cc.broadcast(x, on, root, algorithm=name), lambda xs: [xs[root]] * p,
                   lambda cts: [y if r == root else None for r, y in enumerate(total(cts))], (shape,) * p)  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_through_the_tape(ranks: int) -> None:
    setting = Setting({"a": ranks}, ["a"])
    work = [(replace(case, order=1 if ranks > 3 else 2), setting) for case in tape_cases(ranks)]
    failures = check(work, ranks)
    assert not failures, failures[:3]


def test_adjoints_inherit_the_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter's gradient is summed by the mesh's algorithm; a call's own goes with its adjoint."""
    def program() -> Any:
        rank = cc.world().rank
        with cc.Mesh(dp=3, algorithm="ring") as mesh:
            on = mesh.axis("dp")
            w, x = ag.Parameter(np.arange(6.0)), np.arange(6.0) * (rank + 1)
            with ag.Tape() as tape:
                y = cc.all_reduce((cc.cast(w, "dp") * x).sum(), "dp", to=cc.I, algorithm="native")
            before = on.group.traffic.messages
            tape.backward([y])
            grad = w.grad
            assert grad is not None
            after_ring = on.group.traffic.messages
            v = ag.tensor(x, requires_grad=True)
            with ag.Tape() as tape:
                z = cc.reduce_scatter(v, "dp", algorithm="halving_doubling")
            tape.backward([z], [ag.tensor(np.ones(z.shape), layout=z.layout.dual)])
            return before, after_ring - before, on.group.traffic.messages - after_ring, grad.numpy().tolist()

    for before, ring, halving, grad in cc.run(program, 3):
        assert (before, ring) == (0, 4)
        assert halving > 0
        assert grad == (np.arange(6.0) * 6).tolist()


def test_mesh_and_axes() -> None:
    def program() -> Any:
        mesh = cc.Mesh(dp=2, tp=2, algorithm={"dp": "pipelined:4"})
        dp, both = mesh.axis("dp"), mesh.axis(("dp", "tp"))
        again = dp.group.duplicate("buckets")
        assert again.algorithm == "pipelined:4" and mesh.axis("tp").group.algorithm == "native"
        assert np.array_equal(again.all_reduce(np.ones(3)), np.full(3, 2.0))
        assert again.all_to_all(np.arange(2.0), [1, 1], [1, 1]).size == 2  # the transport's own
        return dp.choice(99), dp.choice(99, "all_gather"), dp.choice(9, algorithm="ring"), both.choice(9)

    assert cc.run(program, 4) == [("pipelined:4", "native", "ring", "native")] * 4
    with pytest.raises(MeshError, match="algorithm='rings' was given; needed: native, auto, ring"):
        cc.Mesh(dp=1, algorithm="rings")
    with pytest.raises(MeshError, match="needed: the number of segments, a positive number"):
        cc.Mesh(dp=1, algorithm="pipelined:0")
    with cc.Mesh(dp=1), pytest.raises(MeshError, match="all_gather: algorithm='tree' was given"):
        cc.all_gather(np.ones(2), "dp", algorithm="tree")


def test_a_different_algorithm_is_a_mismatch() -> None:
    def program() -> None:
        with cc.Mesh(dp=3):
            cc.all_reduce(np.ones(2), "dp", algorithm="ring" if cc.world().rank == 1 else "halving_doubling")

    with pytest.raises(CollectiveMismatch, match=r"rank 1: all_reduce.*algorithm=ring"):
        cc.run(program, 3)

    def meshes() -> None:
        cc.Mesh(dp=2, algorithm="auto" if cc.world().rank else "native").axis("dp").group.barrier()

    with pytest.raises(CollectiveMismatch):
        cc.run(meshes, 2)


def test_bad_arguments() -> None:
    def program() -> None:
        group = Selected(Channel(cc.world()), "ring")
        with pytest.raises(ShapeError, match="3 elements; needed: 2, the sum of counts"):
            group.reduce_scatter(np.ones(3), [1, 1])
        with pytest.raises(ShapeError, match="one-dimensional"):
            group.all_reduce(np.ones((2, 2)))
        with pytest.raises(MeshError, match="root 2"):
            Selected(Channel(cc.world()), "tree").reduce(np.ones(3), 2)

    cc.run(program, 2)


def test_nonblocking_calls_keep_their_order() -> None:
    """Started calls of several algorithms on one channel, waited for in any order, own what they were given."""
    def program() -> Any:
        rank, channel = cc.world().rank, Channel(cc.world())
        x = np.arange(5.0) + rank
        request = Request("all_reduce", x)
        started = [Selected(channel, name).start(request) for name in ("ring", "tree", "halving_doubling")]
        x[:] = -1
        while rank == 0 and not started[1].test():
            pass
        results = [pending.wait() for pending in (started if rank % 2 else started[::-1])]
        blocking = Selected(channel, "ring").all_reduce(np.ones(2))
        return [*results, blocking]

    for results in cc.run(program, 3):
        assert all(np.array_equal(y, np.arange(5.0) * 3 + 3) for y in results[:3])
        assert np.array_equal(results[3], np.full(2, 3.0))


# -- auto --------------------------------------------------------------------------------------------------------------


def test_auto_agrees_on_all_ranks() -> None:
    def program() -> Any:
        with cc.Mesh(dp=3, algorithm="auto") as mesh:
            on = mesh.axis("dp")
            y = cc.all_reduce(np.ones(5), "dp").numpy().tolist()
            return y, [on.choice(4**k, operation) for k in range(13) for operation in OPERATIONS]

    found = cc.run(program, 3)
    assert found[0] == found[1] == found[2] and found[0][0] == [3.0] * 5


def test_auto_takes_the_predicted_best() -> None:
    fit = Fit(8, 50e-6, 1.0 / 62.5e6, 1e-10, {})
    assert fit.choose("all_reduce", 64) == "recursive_doubling"
    long = fit.choose("all_reduce", 1 << 25)
    times = fit.times("all_reduce", 1 << 25)
    assert long == "ring" and times[long] <= 1.05 * min(times.values()) < 0.7 * times["recursive_doubling"]
    assert fit.choose("all_reduce", 1 << 17) == min(fit.times("all_reduce", 1 << 17), key=fit.times(
        "all_reduce", 1 << 17).__getitem__)  # fmt: skip
    hosts = Fit(8, 50e-6, 4.0 / 62.5e6, 1e-10, {}, [(2, 1e-6, 1e-9)], (50e-6, 2.0 / 62.5e6))
    assert hosts.choose("all_reduce", 1 << 25).startswith("hierarchical:shared,")
    assert hosts.choose("reduce_scatter", 1 << 25) in ("ring", "halving_doubling", "recursive_doubling")
    native = Fit(8, 50e-6, 1.0 / 62.5e6, 1e-10, {"native": {"all_reduce": [(1024, 1e-6), (2048, 2e-6)]}})
    assert native.choose("all_reduce", 4096) == "native"
    assert native.times("all_reduce", 4096)["native"] == pytest.approx(4e-6)
    assert "native" not in native.times("all_reduce", 1 << 20)  # a black box, far beyond what was timed


def test_auto_corrects_its_model_where_it_was_tried() -> None:
    """By the error at the nearest size tried, in factors; by none beyond twice the longest; never what was timed."""
    tried = [(1 << 10, 10.0), (1 << 14, 3.0)]
    timed = {"native": {"all_reduce": [(1 << 10, 2e-4), (1 << 16, 2e-4)]}}
    plain = Fit(8, 50e-6, 1e-9, 1e-10, timed)
    fit = Fit(8, 50e-6, 1e-9, 1e-10, timed, errors={"all_reduce": tried})
    for size_bytes, error in [(1, 10), (1 << 10, 10), (4095, 10), (4097, 3), (1 << 15, 3), ((1 << 15) + 1, 1)]:
        found, model = fit.times("all_reduce", size_bytes), plain.times("all_reduce", size_bytes)
        assert found.keys() == model.keys() > {"ring", "native"}
        for name in found:
            assert found[name] == pytest.approx(model[name] * (1 if name == "native" else error)), (name, size_bytes)
        assert fit.times("reduce", size_bytes) == plain.times("reduce", size_bytes)
    assert plain.choose("all_reduce", 1 << 10) == "recursive_doubling" and fit.choose("all_reduce", 1 << 10) == "native"


@pytest.mark.parametrize(
    ("size_bytes", "times", "taken"),
    [
        (1 << 20, {"trees": 1.0, "ring": 1.04}, "ring"),
        (1 << 20, {"trees": 1.0, "ring": 1.06}, "trees"),
        (1 << 20, {"ring": 1.0, "native": 1.04}, "ring"),  # not where bytes count, but when it is the best
        (1 << 20, {"ring": 1.1, "native": 1.0}, "native"),
        (1 << 16, {"trees": 1.0, "native": 1.24}, "native"),
        (1 << 16, {"trees": 1.0, "native": 1.26}, "trees"),
        ((1 << 16) + 4, {"trees": 1.0, "native": 1.24}, "trees"),
        (1 << 16, {"trees": 1.0, "ring": 1.04, "native": 1.2}, "native"),
        (64, {"trees": 1.0, "doubling": 1.0}, "doubling"),  # by name, whatever order a rank has them in
        (64, {"doubling": 1.0, "trees": 1.0}, "doubling"),
    ],
)
def test_auto_takes_what_is_about_as_good(
    size_bytes: int, times: dict[str, float], taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = Fit(8, 50e-6, 1e-9, 1e-10, {})
    monkeypatch.setattr(fit, "times", lambda operation, size_bytes: times)
    assert fit.choose("all_reduce", size_bytes) == taken


def test_auto_takes_the_median_of_what_the_ranks_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank's clock says something else; all have one fit, on the grid of sizes that they were to time and try."""
    seconds = (1e-5, 2e-5, 9e-5)

    asked = [0] * 3

    def usual(runs: Sequence[tuple[Callable[[], Any], int]], before: Callable[[], Any]) -> list[float]:
        """A trial takes three times as long as the transport's own call, in a slower hour."""
        rank = cc.world().rank
        for run, _ in runs:
            run()
        asked[rank] += 1
        factors = [1] * len(runs) if asked[rank] == 1 else [21, 7] * (len(runs) // 2)
        return [factor * seconds[rank] for factor in factors]

    monkeypatch.setattr(fitting, "_usual", usual)
    monkeypatch.setattr(fitting, "TIMED_LIMIT_S", 1e9)

    def program() -> Any:
        fit = cast(Any, cc.Mesh(dp=3).axis("dp").using("auto")).channel.fit
        choices = [fit.choose(operation, 4**k) for k in range(13) for operation in OPERATIONS]
        return fit.alpha_s, fit.beta_s_per_byte, fit.gamma_s_per_byte, fit.timed, fit.errors, choices, fit.modelled

    first, *others = cc.run(program, 3)
    assert all(each[:-1] == first[:-1] for each in others)
    alpha, _, gamma, timed, errors, _, modelled = first
    assert alpha == pytest.approx(1e-5, rel=1e-5) and gamma == pytest.approx(2e-5 / (1 << 16))  # two rounds a call
    sizes = [1 << k for k in (10, 12, 14, 17)]
    assert timed["native"] == {operation: [(size, 2e-5) for size in sizes] for operation in OPERATIONS}
    assert errors == {
        operation: [(size, pytest.approx(6e-5 / min(modelled(operation, size).values()))) for size in sizes[:3]]
        for operation in OPERATIONS
    }


def test_auto_measures_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks on each of two hosts: both levels are measured, and what is chosen runs."""
    monkeypatch.setattr(cc.Communicator, "hosts", property(lambda self: [rank // 2 * 2 for rank in self.ranks]))

    def program() -> Any:
        with cc.Mesh(dp=4, algorithm="auto") as mesh:
            group: Any = mesh.axis("dp").group
            fit = group.channel.fit
            assert fit.levels[0][0] == 2 and "hierarchical:shared,ring" in fit.times("all_reduce", 4096)
            fit.timed.clear()
            fit.levels, fit.outermost = [(2, 0.0, fit.levels[0][2])], (0.0, 0.0)
            assert fit.choose("all_reduce", 40).startswith("hierarchical")
            return cc.all_reduce(np.ones(5), "dp").numpy().tolist(), fit.levels

    found = cc.run(program, 4)
    assert all(each == ([4.0] * 5, found[0][1]) for each in found)


# -- real processes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "sizes"), [
    (3, ["61"]), *(pytest.param(n, ["0", "1", "61"], marks=pytest.mark.slow) for n in (2, 3, 4)),
])  # fmt: skip
def test_over_mpi(ranks: int, sizes: list[str]) -> None:
    outcome = launch("algorithms.py", ranks, *sizes, limit_s=100, OPENBLAS_NUM_THREADS="1")
    assert not outcome.is_late, outcome.err
    assert (outcome.code, outcome.err) == (0, "")
    found = re.search(r"(\d+) cases on (\d) ranks", outcome.out)
    assert found is not None and int(found[1]) > 80 and int(found[2]) == ranks


# -- the checks can fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["no addition", "half of the pieces", "wrong part", "unfolded"])
def test_planted_faults(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each must be seen by the comparison with the dense sum, or as a deadlock that the transport reports."""
    from collectives.algorithms import halving, ring

    if fault == "no addition":
        monkeypatch.setattr(ring.np, "add", lambda a, b, out: np.copyto(out, b))
    elif fault == "half of the pieces":
        add = np.add
        monkeypatch.setattr(ring.np, "add", lambda a, b, out: add(a, b, out=out) if len(a) % 2 else out)
        monkeypatch.setattr(steps, "SEGMENT_BYTES", 32)
    elif fault == "wrong part":
        cut = ring.cut
        monkeypatch.setattr(ring, "cut", lambda x, bounds: cut(x, bounds)[::-1])
    else:
        monkeypatch.setattr(halving, "_fold_out", lambda *_: iter(()))
    with pytest.raises((AssertionError, cc.CommunicationError)):
        operation = "reduce_scatter" if fault == "wrong part" else "all_reduce"
        algorithm = "halving_doubling" if fault == "unfolded" else "ring"
        verify(operation, algorithm, 3, 61, np.float64, (20, 31, 10))


def test_what_auto_predicts_runs_between_any_ranks() -> None:
    """Shared memory needs one host, so a prediction of messages must not offer it."""
    for operation in OPERATIONS:
        offered = candidates(operation, 1 << 20, 6, 1e-5, 1e-9)
        assert offered and not any(name.startswith(("shared", "hierarchical", "reproducible")) for name in offered)
