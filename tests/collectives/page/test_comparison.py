"""Copies that differ, values that are not finite, and both sides of the pairing, on random values."""

from __future__ import annotations

import math

import numpy as np
import pytest

import autograd.numpy  # noqa: F401 - declares the operations
import collectives as cc  # noqa: F401
from collectives.inspect.record import Contribution, OperationRecord, RankRecords
from collectives.page.alignment import align
from collectives.page.comparison import DIFFERS, NOT_FINITE, flags, labels_of, origins, pairings

from .made import Maker, summary


def grid(dp: int, tp: int) -> list[RankRecords]:
    mesh = (("dp", dp), ("tp", tp))
    return [RankRecords(d * tp + t, mesh, (d, t)) for d in range(dp) for t in range(tp)]


def test_labels() -> None:
    assert labels_of("{dp: Shard(1), tp: Rooted(2)}") == {"dp": "Shard(1)", "tp": "Rooted(2)"}
    assert labels_of("") == {}


COPIES = [("{dp: R, tp: Shard(0)}", "dp"), ("{dp: V, tp: I}", "tp"), ("{dp: I, tp: R}", "dptp")]


@pytest.mark.parametrize("layout, along", COPIES)
def test_copies(layout: str, along: str) -> None:
    """Values differ only where the layout allows it; then one copy is changed."""
    random = np.random.default_rng(3)
    ranks = grid(3, 2)
    values: dict[tuple[int, ...], np.ndarray] = {}
    for of in ranks:
        place = tuple(at for (axis, _), at in zip(of.mesh, of.coordinates, strict=True) if axis not in along)
        value = values.setdefault(place, random.normal(size=3))
        of.records.append(OperationRecord(0, "forward", "exp", layout=layout, value=summary(value)))
    assert flags(ranks, align(ranks)) == [[0]] * 6
    ranks[4].records[0].value = summary(random.normal(size=3))
    found = flags(ranks, align(ranks))
    marked = [r for r, row in enumerate(found) if row[0] & DIFFERS]
    d, t = ranks[4].coordinates
    same = [("dp" in along or of.coordinates[0] == d) and ("tp" in along or of.coordinates[1] == t) for of in ranks]
    assert marked == [r for r, is_copy in enumerate(same) if is_copy]


def test_values_without_a_mesh_or_of_other_operations_are_not_compared() -> None:
    ranks = [RankRecords(r, records=[OperationRecord(0, "forward", "exp", value=summary([r]))]) for r in range(2)]
    assert flags(ranks, align(ranks)) == [[0], [0]]
    ranks = grid(2, 1)
    for r, of in enumerate(ranks):
        of.records.append(OperationRecord(0, "forward", "exp", layout="{dp: R, tp: R}", value=summary([r]), line=r))
    assert flags(ranks, align(ranks)) == [[0], [0]]


def test_where_a_fault_began() -> None:
    """`exp` overflows; what follows is not finite either, and neither is its cotangent."""
    bad, good = summary([math.inf, 1.0]), summary([1.0, 2.0])
    records = [
        OperationRecord(0, "forward", "leaf x", value=good),
        OperationRecord(1, "forward", "exp", operands=(0,), value=bad),
        OperationRecord(2, "forward", "sum", operands=(1,), value=bad),
        OperationRecord(3, "backward", "sum", adjoint_of=2, value=good, contributions=(Contribution(1, good),)),
        OperationRecord(4, "backward", "exp", adjoint_of=1, value=good, contributions=(Contribution(0, bad),)),
        OperationRecord(5, "backward", "leaf x", adjoint_of=0, value=bad),
    ]
    ranks = [RankRecords(0, records=records)]
    found = flags(ranks, align(ranks))
    assert found == [[0, NOT_FINITE, NOT_FINITE, 0, 0, NOT_FINITE]]
    assert origins(ranks, align(ranks), found, NOT_FINITE) == [(0, 1), (0, 5)]


def test_a_fault_that_comes_from_another_rank_did_not_begin_here() -> None:
    """Rank 1 has the infinite value, which all_reduce gives to both, forwards and inside an adjoint."""
    bad, good = summary([math.inf, 1.0]), summary([1.0, 2.0])
    ranks = []
    for r, maker in enumerate([Maker(0, range(2)), Maker(1, range(2))]):
        own = bad if r else good
        maker.add("exp").value = own
        summed = maker.add("all_reduce@dp")
        summed.value, summed.operands = bad, (0,)
        back = maker.add("all_reduce", "backward", 1)
        back.value, back.contributions = own, (Contribution(0, bad),)
        maker.add("all_reduce@dp", "backward").cause = 2
        maker.add("exp", "backward", 0).value = bad
        ranks.append(RankRecords(r, records=maker.records))
    found = flags(ranks, align(ranks))
    assert origins(ranks, align(ranks), found, NOT_FINITE) == [(1, 0)]
    ranks[1].records[0].value = ranks[1].records[2].value = good
    found = flags(ranks, align(ranks))
    assert origins(ranks, align(ranks), found, NOT_FINITE) == [(0, 1), (0, 4), (1, 1), (1, 4)]


def test_the_pairing_of_a_sum_over_ranks() -> None:
    """all_reduce from Partial to Invariant: the Invariant side counts once, so the sides are equal only then."""
    random = np.random.default_rng(1)
    parts, ct = random.normal(size=(3, 4)), random.normal(size=4)
    ranks = []
    for r in range(3):
        records = [
            OperationRecord(0, "forward", "leaf x", layout="{dp: P}", value=summary(parts[r])),
            OperationRecord(1, "forward", "all_reduce", operands=(0,), operand_names=("x",),
                            operand_layouts=("{dp: P}",), layout="{dp: I}", value=summary(parts.sum(0))),
            OperationRecord(2, "backward", "all_reduce", adjoint_of=1, layout="{dp: I}", value=summary(ct),
                            contributions=(Contribution(0, summary(ct)),)),
        ]  # fmt: skip
        ranks.append(RankRecords(r, (("dp", 3),), (r,), records))
    (found,) = pairings(ranks, align(ranks))
    assert found.result == pytest.approx(parts.sum(0) @ ct)
    assert found.operands == (("x", pytest.approx(found.result)),)
    ranks[1].records[2].contributions = (Contribution(0, summary(2 * ct)),)
    (found,) = pairings(ranks, align(ranks))
    assert found.operands[0][1] != pytest.approx(found.result)


def product(
    x: np.ndarray, y: np.ndarray, ct: np.ndarray, operands: tuple[int, ...], name: str
) -> list[OperationRecord]:
    """Two leaves, their product or sum, and its adjoint."""
    both = {"multiply": (ct * y, ct * x, x * y), "add": (ct, ct, x + y)}[name]
    given = tuple(Contribution(to, summary(both[i])) for i, to in enumerate(operands) if to >= 0)
    return [
        OperationRecord(0, "forward", "leaf x", value=summary(x)),
        OperationRecord(1, "forward", "leaf y", value=summary(y)),
        OperationRecord(2, "forward", name, operands=operands, value=summary(both[2])),
        OperationRecord(3, "backward", name, adjoint_of=2, value=summary(ct), contributions=given),
    ]  # fmt: skip


def test_the_pairing_of_several_operands() -> None:
    x, y, ct = np.random.default_rng(2).normal(size=(3, 5))

    def sides(records: list[OperationRecord]) -> list[tuple[complex, tuple[tuple[str, complex], ...]]]:
        ranks = [RankRecords(0, records=records)]
        return [(found.result, found.operands) for found in pairings(ranks, align(ranks))]

    ((left, right),) = sides(product(x, y, ct, (0, 1), "multiply"))
    assert left == pytest.approx(ct @ (x * y))
    assert [side for _, side in right] == [pytest.approx(left), pytest.approx(left)]  # linear in each
    ((left, right),) = sides(product(x, y, ct, (0, 1), "add"))
    assert [side for _, side in right] == [pytest.approx(left)]  # jointly linear
    ((left, right),) = sides(product(x, y, ct, (0, -1), "multiply"))
    assert [side for _, side in right] == [pytest.approx(left)]
    assert sides(product(x, y, ct, (0, -1), "add")) == []  # affine in x alone
    ((left, right),) = sides(product(x, x, ct, (0, 0), "multiply"))
    assert [side for _, side in right] == [pytest.approx(left), pytest.approx(left)]


def test_no_pairing_without_all_values() -> None:
    x, y, ct = np.random.default_rng(2).normal(size=(3, 70))
    ranks = [RankRecords(0, records=product(x, y, ct, (0, 1), "multiply"))]
    assert list(pairings(ranks, align(ranks))) == []
