"""The alignment of the ranks' records, on programs of every kind, and the columns of their pairs."""

from __future__ import annotations

import random

import pytest

from collectives.inspect.record import OperationRecord, RankRecords
from collectives.page.alignment import Alignment, align, is_message
from collectives.page.placement import place

from .made import Maker, programs


def check(ranks: list[RankRecords], found: Alignment) -> None:
    """Each rank's moments grow, and communication is in order: a collective in one moment, a receive after its send."""
    for of, moments in zip(ranks, found.moments, strict=True):
        assert moments == sorted(set(moments)) and len(moments) == len(of.records)
        assert all(0 <= m < found.count for m in moments)
    assert {m for moments in found.moments for m in moments} == set(range(found.count))
    for link in found.links:
        at = [found.moments[r][k] for r, k, _ in link.members]
        r, k, c = link.members[0]
        if len(at) == 2 and is_message(ranks[r].records[k].calls[c]):
            assert at[0] < at[1]
        elif len(at) > 1:
            assert len(set(at)) == 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_equal_programs_share_every_moment(ranks: int) -> None:
    found = align(programs(*["exp all_reduce@dp sin sin all_reduce@dp exp"] * ranks))
    assert found.moments == [[0, 1, 2, 3, 4, 5]] * ranks
    assert [len(link.members) for link in found.links] == [ranks] * 2


def test_a_rank_with_more_to_do_before_a_collective() -> None:
    ranks = programs("read exp all_reduce@dp sin", "exp all_reduce@dp sin", "exp all_reduce@dp log sin")
    found = align(ranks)
    check(ranks, found)
    assert found.moments == [[0, 1, 2, 4], [1, 2, 4], [1, 2, 3, 4]]


def test_a_message_goes_forwards() -> None:
    ranks = programs("exp send>1 exp send>1", "recv<0 sin recv<0 sin")
    found = align(ranks)
    check(ranks, found)
    assert found.moments == [[0, 1, 2, 3], [2, 3, 4, 5]]


def test_an_exchange_of_messages_is_no_circle() -> None:
    ranks = programs("send>1 recv<1", "send>0 recv<0")
    found = align(ranks)
    check(ranks, found)
    assert found.moments == [[0, 1], [0, 1]]


def test_one_operation_that_sends_and_receives_shares_a_moment() -> None:
    ranks = []
    for rank in range(3):
        maker = Maker(rank, range(3))
        made = maker.add(f"send>{(rank + 1) % 3}")
        made.calls += maker.add(f"recv<{(rank - 1) % 3}").calls
        made.name = "permute"
        ranks.append(RankRecords(rank, records=maker.records[:1]))
    found = align(ranks)
    assert found.moments == [[0], [0], [0]]
    assert [link.ranks for link in found.links] == [(0, 1), (2, 0), (1, 2)]


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_a_pipeline_runs_beside_itself(stages: int) -> None:
    """Stages of one program: microbatch b is on stage s while b + 1 is on the stage before."""
    batches, texts = 4, []
    for s in range(stages):
        words = []
        for _ in range(batches):
            words += [f"recv<{s - 1}"] * (s > 0) + ["layer"] + [f"send>{s + 1}"] * (s < stages - 1)
        texts.append(" ".join(words))
    ranks = programs(*texts)
    found = align(ranks)
    check(ranks, found)
    assert found.count <= 3 * batches + 3 * stages - 4 < sum(len(of.records) for of in ranks)


def test_a_deadlock_keeps_its_calls() -> None:
    ranks = programs("exp recv<1", "exp recv<0")
    found = align(ranks)
    assert found.moments == [[0, 1], [0, 1]]
    assert [(link.ranks, len(link.members)) for link in found.links] == [((1, 0), 1), ((0, 1), 1)]


def test_calls_that_cross_end() -> None:
    """Collectives on two channels in opposite orders, as a deadlocked program records them."""
    ranks = programs("all_reduce@a all_reduce@b exp", "all_reduce@b all_reduce@a exp")
    found = align(ranks)
    for of, moments in zip(ranks, found.moments, strict=True):
        assert moments == sorted(set(moments)) and len(moments) == len(of.records)
    assert found.moments[0][-1] == found.moments[1][-1]


def test_a_collective_of_some_ranks_leaves_the_others_alone() -> None:
    ranks = programs("all_reduce@tp", "exp exp exp", "exp exp exp all_reduce@tp")
    for of in (ranks[0], ranks[2]):
        of.records[-1].calls[0].ranks = (0, 2)
    found = align(ranks)
    assert found.moments == [[3], [0, 1, 2], [0, 1, 2, 3]]


def test_comparisons_align_nothing() -> None:
    """The ranks make a comparison in different operations; they send it ahead."""
    ranks = programs("exp@dp sin", "log cos tan@dp")
    assert align(ranks).moments == [[2, 3], [0, 1, 2]]
    for of in ranks:
        for call in (call for record in of.records for call in record.calls):
            call.is_control = True
    assert align(ranks).moments == [[0, 1], [0, 1, 2]]


def test_a_nonblocking_message_arrives_where_it_ended() -> None:
    """The receive is posted before two operations; it had ended when the second one began."""
    ranks = programs("exp exp send>1", "cos recv<0 sin log")
    for of in ranks:
        for k, record in enumerate(of.records):
            record.begin_ns, record.end_ns = 100 * k + 1, 100 * k + 50
    call = ranks[1].records[1].calls[0]
    call.is_nonblocking, call.begin_ns, call.end_ns = True, 101, 250
    found = align(ranks)
    assert found.moments == [[0, 1, 2], [0, 1, 2, 3]]
    assert found.links[0].arrival == 3
    call.is_nonblocking = False
    assert align(ranks).moments == [[0, 1, 2], [0, 3, 4, 5]]


def test_inner_records_have_the_moment_of_the_outer() -> None:
    records = [
        OperationRecord(0, "forward", "cast"), OperationRecord(1, "backward", "cast", adjoint_of=0),
        OperationRecord(2, "backward", "all_reduce", cause=1), OperationRecord(3, "update", "SGD"),
    ]  # fmt: skip
    found = align([RankRecords(0, records=records)])
    assert found.moments == [[0, 1, 1, 2]]
    assert place([RankRecords(0, records=records)], found).of == [[0, 0, 0, 1]]


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    """Programs that could run: events in one global order, each on some ranks."""
    draw = random.Random(seed)
    ranks = draw.randint(1, 5)
    makers = [Maker(r, range(ranks)) for r in range(ranks)]
    late: list[tuple[int, int]] = []
    for _ in range(draw.randint(5, 60)):
        kind = draw.random()
        if kind < 0.6 or ranks == 1:
            for r in draw.sample(range(ranks), draw.randint(1, ranks)):
                makers[r].add(draw.choice(["exp", "sin", "add"]))
        elif kind < 0.75:
            group = tuple(sorted(draw.sample(range(ranks), draw.randint(2, ranks))))
            for r in group:
                made = makers[r].add("all_reduce@" + "_".join(map(str, group)))
                made.calls[0].ranks = group
        else:
            sender, receiver = draw.sample(range(ranks), 2)
            makers[sender].add(f"send>{receiver}")
            late.append((sender, receiver))
            if draw.random() < 0.7:
                first = late.pop(0)
                makers[first[1]].add(f"recv<{first[0]}")
    made = [RankRecords(r, records=maker.records) for r, maker in enumerate(makers)]
    check(made, align(made))


def test_a_second_adjoint_has_a_column_of_its_own() -> None:
    maker = Maker(0, [0])
    maker.add("exp")
    maker.add("sin")
    for forward in (1, 0, 1, 0):
        maker.add("adjoint", "backward", forward)
    ranks = [RankRecords(0, records=maker.records)]
    placed = place(ranks, align(ranks))
    assert placed.of == [[0, 1, 1, 0, 2, 3]]
    assert placed.columns == 4


def test_pairs_share_a_column_on_ranks_that_differ() -> None:
    ranks = []
    for rank, text in enumerate(["exp send>1", "recv<0 sin sum"]):
        maker = Maker(rank, range(2))
        for word in text.split():
            maker.add(word)
        for k in reversed(range(len(maker.records))):
            maker.add("adjoint", "backward", k)
        ranks.append(RankRecords(rank, records=maker.records))
    placed = place(ranks, align(ranks))
    for of, row in zip(ranks, placed.of, strict=True):
        for record in of.records:
            if record.adjoint_of is not None:
                assert row[record.id] == row[record.adjoint_of]
