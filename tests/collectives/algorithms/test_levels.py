"""Hierarchies of several levels: hosts, racks and rows, of any size and in any order, against the dense sum."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autograd as ag
import collectives as cc
from autograd.errors import MeshError
from collectives.algorithms import predict
from collectives.algorithms.costs import hierarchies
from collectives.algorithms.hierarchical import BETWEEN, INSIDE, even_sizes
from collectives.algorithms.selected import Channel, Selected

from ..launch import launch

LINK, SLOW = cc.Link(1e-6, 1e10), cc.Link(1e-5, 1e9)


def summed(monkeypatch: pytest.MonkeyPatch, domains: Sequence[str], algorithm: str, size: int) -> list[Any]:
    """The traffic of the ranks of an all-reduce on places that are given as letters, which has the dense sum."""
    numbers = [[level.index(letter) + 1 for letter in level] for level in domains]
    monkeypatch.setattr(cc.Communicator, "hosts", property(lambda self: [numbers[0][r] for r in self.ranks]))
    monkeypatch.setattr(cc.Communicator, "domains", property(
        lambda self: tuple(tuple(level[r] for r in self.ranks) for level in numbers[1:])))  # fmt: skip
    ranks = len(domains[0])
    xs = [np.random.default_rng([rank, size]).integers(0, 9, size).astype(float) for rank in range(ranks)]

    def program() -> Any:
        group = Selected(Channel(cc.world()), algorithm)
        return group.all_reduce(xs[cc.world().rank]), group.traffic

    found = cc.run(program, ranks)
    for y, _ in found:
        assert np.array_equal(y, sum(xs)), (domains, algorithm, size)
    return [traffic for _, traffic in found]


PLACES = (
    ("AABBCCDD", "XXXXYYYY"), ("ABCDABCD", "XXYYXXYY"), ("ABCD", "XXYY"), ("AAABBC", "XXXXXY"), ("AABB", "XXXX"),
    ("ABCDE", "XXXYY", "MMMNN"), ("AABBCCDD", "WWXXYYZZ", "MMMMNNNN"), ("A", "X"), ("AAAA", "XXXX", "MMMM"),
)  # fmt: skip


@pytest.mark.parametrize("domains", PLACES, ids="/".join)
def test_the_sum(domains: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    levels = len(domains)
    middle = [name for name in INSIDE if name != "shared"]
    every = list(itertools.product(INSIDE, *[middle] * (levels - 1), BETWEEN))
    chosen = [f"hierarchical:{','.join(names)}" for names in every[:: max(1, len(every) // 12)]]
    for k, algorithm in enumerate(["hierarchical", "hierarchical:ring,ring", *chosen]):
        summed(monkeypatch, domains, algorithm, (24, 1, 0, 61)[k % 4])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_places(draw: Any) -> None:
    """Domains of any sizes that lie in each other."""
    ranks = draw.draw(st.integers(1, 7))
    letters = [draw.draw(st.integers(0, 3)) for _ in range(ranks)]  # the host of each rank
    domains = ["".join("ABCD"[each] for each in letters)]
    for _ in range(draw.draw(st.integers(0, 2))):
        outside = {each: draw.draw(st.integers(0, 2)) for each in sorted(set(domains[-1]))}
        domains.append("".join("WXYZ"[outside[each]] for each in domains[-1]))
    names = [draw.draw(st.sampled_from([name for name in INSIDE if name != "shared"])) for _ in domains]
    algorithm = f"hierarchical:{','.join([*names, draw.draw(st.sampled_from(list(BETWEEN)))])}"
    with pytest.MonkeyPatch.context() as patch:
        summed(patch, domains, algorithm, draw.draw(st.integers(0, 30)))


def test_what_crosses_is_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks on each host, two hosts in each rack, two racks: n/4 of the array crosses between racks."""
    domains = ("AABBCCDD", "XXXXYYYY")
    size = 48
    for algorithm, crossing in (("hierarchical:ring,ring,ring", 2 * size * 8 / 4 * 1 / 2),
                                ("hierarchical:ring,ring", None)):  # fmt: skip
        traffic = summed(monkeypatch, domains, algorithm, size)
        sent = [sum(n for peer, (_, n) in seen.peers.items() if domains[1][peer] != domains[1][rank])
                for rank, seen in enumerate(traffic)]  # fmt: skip
        if crossing is not None:
            assert sent == [crossing] * 8
        else:  # a ring between all hosts: one rank of each host that has a neighbour there sends its whole share
            assert sum(sent) == 2 * 2 * (2 * size * 8 / 2 * 3 / 4)


@pytest.mark.parametrize("algorithm", [
    "ring,ring,ring", "ring,halving_doubling,tree", "ring,tree,ring", "tree,tree,tree",
    "halving_doubling,ring,recursive_doubling",
])  # fmt: skip
def test_costs_are_what_is_sent(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 840
    traffic = summed(monkeypatch, ("AABBCCDD", "XXXXYYYY"), f"hierarchical:{algorithm}", size)
    cost = predict("all_reduce", f"hierarchical:{algorithm}", size * 8, 8, 1e-5, 1e-9, 1e-10,
                   levels=[(2, 1e-7, 1e-10), (2, 1e-6, 1e-9)])  # fmt: skip
    assert cost.bytes == pytest.approx(max(seen.bytes for seen in traffic))
    assert cost.messages == max(seen.messages for seen in traffic)


def test_a_tree_of_a_level_has_fewer_messages_and_rings_fewer_bytes() -> None:
    levels = [(2, 1e-6, 1e-10), (8, 1e-5, 1e-9)]
    of = {name: predict("all_reduce", f"hierarchical:shared,{name},ring", 1e6, 32, 1e-5, 1e-9, levels=levels)
          for name in ("tree", "ring")}  # fmt: skip
    assert of["tree"].messages < of["ring"].messages and of["tree"].bytes > of["ring"].bytes


def test_sizes_that_are_even() -> None:
    assert even_sizes([[0, 0, 1, 1, 2, 2, 3, 3], [0] * 4 + [1] * 4, [0] * 8]) == [2, 2, 2]
    assert even_sizes([[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1]]) == [2]
    assert even_sizes([[0, 1, 2, 3], [0, 1, 0, 1]]) == [1, 2] and even_sizes([[0, 1, 0]]) == []


# -- a topology that is given ------------------------------------------------------------------------------------------


def test_a_mesh_takes_its_levels_from_a_topology() -> None:
    machine = cc.Topology(2, LINK, LINK, outer=[(2, SLOW)])

    def program() -> Any:
        rank = cc.world().rank
        with cc.Mesh(dp=8, algorithm="hierarchical:ring,tree,ring", topology=machine) as mesh:
            w, x = ag.Parameter(np.ones(12)), np.arange(12.0) + rank
            with ag.Tape() as tape:
                loss = cc.all_reduce((cc.cast(w, "dp") * x).sum(), "dp", to=cc.I)
            before = dict(mesh.axis("dp").group.traffic.peers)
            tape.backward(loss)
            after = mesh.axis("dp").group.traffic.peers
            crossing = sum(n - before.get(peer, (0, 0))[1] for peer, (_, n) in after.items() if peer // 4 != rank // 4)
            assert w.grad is not None
            return w.grad.numpy().tolist(), crossing

    found = cc.run(program, 8)
    assert all(grad == (8 * np.arange(12.0) + 28).tolist() for grad, _ in found)
    # with a tree inside the racks, the first host's ranks of each rack send n/2 in a ring of two
    assert [crossing for _, crossing in found] == [2 * 12 * 8 / 2 / 2 * (rank % 4 < 2) for rank in range(8)]


def test_auto_chooses_by_a_topology() -> None:
    machine = cc.Topology(2, LINK, LINK, outer=[(2, SLOW)])

    def program() -> Any:
        with cc.Mesh(dp=8, algorithm="auto", topology=machine) as mesh:
            axis = mesh.axis("dp")
            group: Any = axis.group
            return axis.choice(1 << 24), group.choices.source, cc.all_reduce(np.ones(9), "dp").numpy().tolist()

    (chosen, source, total), *others = cc.run(program, 8)
    assert source == "topology" and chosen.startswith("hierarchical:shared,") and total == [8.0] * 9
    assert all(each == (chosen, source, total) for each in others)
    times = {name: predict("all_reduce", name, 1 << 24, 8, 1e-5, 1e-9, levels=machine.links(range(8))[0]).time_s
             for name in hierarchies(2)}  # fmt: skip
    assert times[chosen] <= 1.05 * min(times.values())
    assert chosen in machine.explain(1 << 24, 8, chosen)


def test_one_table_explains_it() -> None:
    machine = cc.Topology(2, LINK, LINK, outer=[(2, SLOW)])
    text = machine.explain(1e6, 8, "hierarchical:ring,tree,ring")
    head, _, *rows, beside = text.splitlines()
    cost = predict("all_reduce", "hierarchical:ring,tree,ring", 1e6, 8, 1e-5, 1e-9, levels=machine.links(range(8))[0])
    assert head.startswith("hierarchical:ring,tree,ring of 1e+06 bytes on 8 ranks: ")
    assert [row.split()[0] for row in rows] == ["1", "2", "between"] and "ring" in beside
    assert sum(int(row.split()[-4]) for row in rows) == cost.messages


@pytest.mark.parametrize(("call", "text"), [
    (lambda: cc.Mesh(dp=1, topology="rack"), "needed: a collectives.Topology"),
    (lambda: cc.Topology(2, LINK, LINK, outer=[2]), "hosts of a rack"),
    (lambda: cc.Topology(2, LINK, LINK, outer=[(0, LINK)]), "outer=0 was given"),
    (lambda: cc.Topology(2, LINK, LINK, outer=[(2, 5)]), "outer=5 was given"),
    (lambda: cc.Topology(2, LINK, LINK).explain(1e6, 2), "on one host"),
    (lambda: cc.Topology(2, LINK, LINK).explain(1e6, 4, "ring"), "needed: hierarchical"),
    (lambda: cc.Topology(2, LINK, LINK).explain(-5, 4), "explain: bytes=-5 was given"),
    (lambda: cc.Topology(2, LINK, LINK).explain(1e6, 4, "hierarchical:ring,ring,ring"), "fix: RINGTAPE_PLACE"),
    (lambda: cc.Mesh(dp=1, algorithm="hierarchical:ring,shared,ring"), "inside a rack"),
    (lambda: cc.Mesh(dp=1, algorithm="hierarchical:ring"), "needed: INSIDE,BETWEEN"),
])  # fmt: skip
def test_mistakes(call: Any, text: str) -> None:
    with pytest.raises(MeshError, match=text):
        call()


def test_more_algorithms_than_levels() -> None:
    def program() -> None:
        with cc.Mesh(dp=2, algorithm="hierarchical:ring,ring,ring"):
            cc.all_reduce(np.ones(4), "dp")

    with pytest.raises(MeshError, match="for 2 levels; the ranks have 1: hosts alone"):
        cc.run(program, 2)


@pytest.mark.parametrize(("domains", "text"), [
    (([1, 1], [[1, 2]]), "rank 1 differs from that of rank 0, which is on the same host"),
    (([1, 2], [[1, 0]]), "rank 1 has fewer parts"),
])  # fmt: skip
def test_places_that_cannot_be(domains: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cc.Communicator, "hosts", property(lambda self: domains[0]))
    monkeypatch.setattr(cc.Communicator, "domains", property(lambda self: domains[1]))

    def program() -> None:
        with cc.Mesh(dp=2, algorithm="hierarchical"):
            cc.all_reduce(np.ones(4), "dp")

    with pytest.raises(MeshError, match=text):
        cc.run(program, 2)


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "out"), [("topology", "[6.0, 6.0, 6.0]"), ("launcher", "[[1, 1, 1, 1]]")])
def test_over_mpi(how: str, out: str) -> None:
    place = {} if how == "topology" else {"RINGTAPE_PLACE": "row1"}
    outcome = launch("levels.py", 4, how, limit_s=100, OPENBLAS_NUM_THREADS="1", **place)
    assert not outcome.is_late and outcome.code == 0, outcome.err
    assert out in outcome.out
