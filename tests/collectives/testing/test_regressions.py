"""Defects that random programs have found, each as the smallest program that shows it."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from collectives import I, P, R, Rooted, Shard, V

from ...on_mesh import on


def test_a_replicated_operand_of_a_rooted_result_gets_nothing_off_the_root() -> None:
    """The absent cotangent was handed to an operand that is present, and the next collective tried to send it."""

    def program(mesh: Any) -> Any:
        rank = int(mesh.axis("a").rank)
        w = ag.Parameter([2.0, 3.0])
        x = ag.tensor([5.0, 7.0], {"a": Rooted(1)})
        with ag.Tape() as tape:
            y = cc.cast(w, "a", to=R) * x  # on rank 1 only
            loss = cc.broadcast(y.sum(), "a", root=1, to=I)
        tape.backward(loss)
        assert y.absent == (rank != 1)
        return w.grad.numpy().tolist()

    assert on(3, program, a=3) == [[5.0, 7.0]] * 3


@pytest.mark.parametrize("operation", [np.add, np.multiply, lambda w, x: np.concatenate([w, x]), lambda w, x: w @ x])
def test_every_kind_of_operation_leaves_it_out(operation: Any) -> None:
    def program(mesh: Any) -> Any:
        x = ag.tensor([5.0, 7.0], {"a": Rooted(0)})
        w = ag.tensor([2.0, 3.0], {"a": R}, requires_grad=True)
        with ag.Tape() as tape:
            loss = operation(w, x).sum()
        tape.backward(loss)
        return None if w.grad is None else (w.grad.layout["a"], w.grad.absent)

    assert on(2, program, a=2) == [(P, False), None]


def test_second_order_through_a_rooted_result() -> None:
    def program(mesh: Any) -> Any:
        x = ag.tensor([5.0], {"a": Rooted(1)})

        def objective(w: Any) -> Any:
            u = cc.cast(w, "a", to=R)
            return cc.broadcast((u * u * u * x).sum(), "a", root=1, to=I)

        return ag.grad(lambda w: ag.grad(objective)(w).sum())(ag.Parameter([2.0])).numpy().tolist()

    assert on(3, program, a=3) == [[60.0]] * 3


def test_a_part_of_one_row_flattens_as_the_others_do() -> None:
    """Rank 1's (1, 4) -> (4,) was taken for the removal of a dimension, so that rank alone refused."""

    def program(mesh: Any) -> Any:
        x = ag.tensor(numpy.arange(12.0).reshape(3, 4), {"a": R})
        y = cc.shard(x, "a").reshape(-1)
        return y.layout["a"].extent, y.layout["a"].offset, y.shape

    assert on(2, program, a=2) == [(12, 0, (8,)), (12, 8, (4,))]


def test_a_part_of_no_rows_flattens_as_the_others_do() -> None:
    def program(mesh: Any) -> Any:
        x = ag.tensor(numpy.ones((2, 4)), {"a": R})
        y = cc.shard(x, "a").reshape(-1)
        return y.layout["a"].extent, y.layout["a"].offset, y.shape

    assert on(3, program, a=3) == [(8, 0, (4,)), (8, 4, (4,)), (8, 8, (0,))]


def test_an_absent_value_has_the_shape_that_it_would_have() -> None:
    """Where a value is absent, the extents of the parts that nobody holds are in its label all the same."""

    def program(mesh: Any) -> Any:
        x = ag.tensor(numpy.ones((2 - mesh.axis("b").rank, 1)), {"a": Rooted(0), "b": Shard(0)}, global_shape=(3, 1))
        c = ag.tensor(numpy.ones((3, 1)), {"a": R, "b": R})
        return (cc.all_gather(x, "b") * c).shape

    assert on(4, program, a=2, b=2) == [(3, 1)] * 4


def test_an_axis_between_those_of_a_tuple_is_gathered_first() -> None:
    """Parts cut by a, b and c in turn were joined over (a, c) while b still lay between: in the wrong order."""

    def program(mesh: Any) -> Any:
        x = cc.shard(ag.tensor(numpy.arange(8.0), dict.fromkeys("abc", R)), ("a", "b", "c"))
        with pytest.raises(cc.LayoutError, match="axis 'b': x is Shard"):
            cc.all_gather(x, ("a", "c"))
        return cc.all_gather(cc.all_gather(x, ("b", "c")), "a").numpy().tolist()

    assert on(8, program, a=2, b=2, c=2) == [list(range(8))] * 8


def test_rows_that_were_merged_stay_together() -> None:
    """Parts of 5 rows of 2 are 4, 4 and 2 long, which is no cut of array_split: ranks disagreed who asks whom."""

    def program(mesh: Any) -> Any:
        x = ag.tensor(numpy.arange(10.0).reshape(5, 2), {"a": R}, requires_grad=True)
        c = ag.tensor(numpy.arange(10.0), {"a": R})
        with ag.Tape() as tape:
            y = cc.shard(x, "a").reshape(-1)
            z = cc.all_gather(y, "a", to=I)
            loss = (z * cc.cast(c, "a", to=I)).sum()
        tape.backward(loss)
        summed = cc.all_reduce(x.grad, "a").numpy().tolist()
        return y.shape, z.numpy().tolist(), summed

    for rank, (shape, z, g) in enumerate(on(3, program, a=3)):
        assert shape == ([4, 4, 2][rank],)
        assert z == list(range(10)) and g == numpy.arange(10.0).reshape(5, 2).tolist()


def test_merged_rows_mix_only_with_what_is_cut_alike() -> None:
    """On rank 0 both parts begin at 0 and the wholes are as long; it must refuse as the others do."""

    def program(mesh: Any) -> Any:
        x = cc.shard(ag.tensor(numpy.ones((5, 2)), {"a": R}), "a").reshape(-1)
        y = ag.tensor(numpy.ones([4, 3, 3][mesh.axis("a").rank]), {"a": Shard(0)}, global_shape=(10,))
        with pytest.raises((cc.LayoutError, ag.ShapeError), match="sharded differently|could not be broadcast"):
            x + y
        even = cc.shard(ag.tensor(numpy.ones((6, 2)), {"a": R}), "a").reshape(-1)
        return (even + ag.tensor(numpy.ones(4), {"a": Shard(0)})).shape

    assert on(3, program, a=3) == [(4,)] * 3


def test_scatter_of_what_an_inner_axis_has_cut_is_refused() -> None:
    """The mesh's earlier axis is the outer one: cut later, its parts would lie inside of the inner one's."""
    def program() -> None:
        with cc.Mesh(a=2, b=2):
            x = ag.tensor(numpy.ones((4, 2)), layout={"a": cc.Rooted(0), "b": cc.Shard(0)})
            with pytest.raises(cc.LayoutError, match="axis 'b': x is Shard\\(0\\): the inner axis has cut"):
                cc.scatter(x, "a", root=0, dim=0)
            assert cc.scatter(x, "a", root=0, dim=1).shape == (4, 1)

    cc.run(program, 4)


def test_rows_are_made_on_a_rank_of_one_row_too() -> None:
    """Rank 1's (2,) -> (1, 2) was taken for a dimension put in front: Shard(1) there, and Shard(0) on the others."""

    def program(mesh: Any) -> Any:
        x = cc.shard(ag.tensor(numpy.arange(6.0).reshape(3, 2), {"a": R}), "a").reshape(-1)  # parts of 4 and 2
        y = x.reshape(-1, 2)
        return repr(y.layout["a"]), y.shape, cc.all_gather(y, "a").numpy().tolist()

    whole = numpy.arange(6.0).reshape(3, 2).tolist()
    assert on(2, program, a=2) == [("Shard(0)", (2, 2), whole), ("Shard(0)", (1, 2), whole)]


def test_one_row_on_every_rank_is_a_row_of_the_whole() -> None:
    """Where all parts are one row the result is what it is serially; a 1 that is written is a new dimension."""

    def program(mesh: Any) -> Any:
        x = cc.shard(ag.tensor(numpy.arange(4.0), {"a": R}), "a")
        rows = cc.all_gather(x.reshape(-1, 2), "a").numpy().tolist()
        return rows, x.reshape(1, 2).layout["a"].dim, x.reshape(-1, 1, 2).layout["a"].dim, x.reshape(2, -1).shape

    assert on(2, program, a=2) == [([[0, 1], [2, 3]], 1, 0, (2, 1))] * 2


def cut_by_b(mesh: Any) -> Any:
    """One row over b, so that b's second rank has none; another row on each rank of a."""
    a, b = mesh.axis("a").group.rank, mesh.axis("b").group.rank
    return ag.tensor(numpy.full((1 - b, 2), a + 1.0), {"b": Shard(0), "a": V}, requires_grad=True, global_shape=(1, 2))


def test_a_joined_dimension_is_no_longer_what_another_axis_said() -> None:
    """b's extent of 1 was kept for parts of 2 and 0 rows: the rank without rows believed it, and the other one did not.

    Each rank then gathered in its own way, which was reported as a mismatch of the program.
    """

    def program(mesh: Any) -> Any:
        x = cut_by_b(mesh)
        with ag.Tape() as tape:
            y = cc.all_gather(x, "a")
            z = cc.all_gather(y, "b", to=I)
            loss = cc.all_reduce((z * z * (mesh.axis("a").rank + 1.0)).sum(), "a", to=I)
        tape.backward(loss)
        return repr(y.layout), z.numpy().tolist(), x.grad.numpy().tolist()

    found = on(4, program, b=2, a=2)
    assert [(layout, z) for layout, z, _ in found] == [("{b: V, a: R}", [[1, 1], [2, 2]])] * 4
    assert [g for _, _, g in found] == [[[6, 6]], [[12, 12]], [], []]  # 2 x (1 + 2)


def test_what_was_exchanged_or_read_is_no_longer_what_another_axis_said() -> None:
    def program(mesh: Any) -> Any:
        x = cut_by_b(mesh)
        y = cc.all_to_all(x, "a", 1, 0)
        z = cc.get(x, "a", 0, slice(0, 1))
        assert y.layout["b"] is z.layout["b"] is cc.gather(x, "a").layout["b"] is V
        return cc.all_gather(y, "b").numpy().tolist()

    assert on(4, program, b=2, a=2) == [[[1.0], [2.0]]] * 4


def test_parts_within_parts_keep_what_is_known() -> None:
    """Where both axes are Shard of the dimension, the outer one's extent is that of the whole, before and after."""

    def program(mesh: Any) -> Any:
        x = cc.shard(ag.tensor(numpy.arange(6.0), {"a": R, "b": R}), ("b", "a"))
        y = cc.all_gather(x, "a")
        return repr(y.layout), y.layout["b"].extent

    assert on(4, program, b=2, a=2) == [("{b: Shard(0), a: R}", 6)] * 4
