"""Operations on parts that once gave another value or gradient than one process, without an error.

Each test compares with the dense value, at even, uneven, single and missing rows.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.engine.pytree import tree_map
from collectives import I, R, Shard

Array = Any
X = numpy.random.default_rng(5).standard_normal((7, 2, 4))
ROWS = [2, 3, 4, 7]  # on three ranks: a rank without rows, one each, 2 1 1, and 3 2 2


def part(x: Array, axis: str = "dp", dim: int = 0) -> Any:
    return cc.shard(ag.tensor(x, {"dp": R}), axis, dim=dim)


def whole(y: Any) -> Array:
    label = y.layout["dp"]
    return cc.all_gather(y, "dp", dim=label.dim).numpy() if isinstance(label, Shard) else y.numpy()


def on_three(body: Callable[[], Any]) -> list[Any]:
    def program() -> Any:
        with cc.Mesh(dp=-1):
            return body()

    return cc.run(program, 3)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_reshapes_to_equal_shapes_keep_their_own_labels(rows: int, order: tuple[int, int]) -> None:
    """With one row, ``reshape(1, -1)`` and ``reshape(n, -1)`` of a local count n give equal shapes on this rank."""
    x = X[:rows]
    shapes: list[Callable[[Any], Any]] = [lambda h: h.reshape(1, -1), lambda h: h.reshape(h.shape[0], -1)]

    def body() -> None:
        h = part(x) * 2
        for i in order:
            assert numpy.allclose(whole(shapes[i](h)), shapes[i](2 * x))

    on_three(body)


@pytest.mark.parametrize("rows", ROWS)
def test_broadcasts_to_equal_shapes_keep_their_own_labels(rows: int) -> None:
    def body() -> list[Any]:
        h = part(X[:rows, 0, 0])
        n = h.shape[0]
        return [np.broadcast_to(h, shape).layout["dp"] for shape in ((int(n), n), (n, n), (int(n), n))]

    assert len({tuple(map(repr, labels)) for labels in on_three(body)}) == 1
    assert len({repr(labels) for labels in on_three(lambda: body()[::2])}) == 1


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    "shape",
    [
        lambda h: (1, h.size), lambda h: (1, h.shape[0] * h.shape[1]), lambda h: (1, -1), lambda h: (h.size, 1),
        lambda h: (h.size,), lambda h: (h.shape[0], 1, h.shape[1]), lambda h: (-1, h.shape[0]),
    ],
)  # fmt: skip
def test_a_reshape_to_the_shape_that_one_row_has(rows: int, shape: Callable[[Any], Any]) -> None:
    x = X[:rows, 0]

    def body() -> Any:
        w = ag.Parameter(numpy.ones(4))
        with ag.Tape() as tape:
            h = part(x) * cc.cast(w, "dp", to=R)
            try:
                y = h.reshape(shape(h))
            except ag.LayoutError:
                return None
            dense = cc.all_gather(y, "dp", dim=y.layout["dp"].dim, to=I)
            loss = (dense * ag.constant(numpy.arange(float(x.size)).reshape(dense.shape))).sum()
        tape.backward(loss)
        return dense.numpy(), w.grad.numpy()

    results = on_three(body)
    if None in results:  # refused, on every rank and for every number of rows
        assert results == [None] * 3 and on_three(body) == [None] * 3 and shape(numpy.ones((2, 5)))[0] == -1
        return
    dense = x.reshape(shape(x))
    weights = numpy.arange(float(x.size)).reshape(x.shape)
    for found in results:
        assert numpy.allclose(found[0], dense)
        assert numpy.allclose(found[1], (x * weights).sum(0))


@pytest.mark.parametrize("rows", ROWS)
def test_a_dimension_merged_with_the_rows_leaves_the_width(rows: int) -> None:
    """``reshape(x.shape[0] * x.shape[1], -1)`` has the same width on a rank without rows."""
    x = X[:rows]

    def body() -> Any:
        h = part(x)
        for flat in (h.reshape(h.shape[0] * h.shape[1], -1), h.reshape(2 * h.shape[0], -1)):
            assert flat.shape[1] == 4 and numpy.allclose(whole(flat @ ag.constant(numpy.eye(4))), x.reshape(-1, 4))
        assert h.reshape(h.shape[0], -1).shape[1] == 8

    on_three(body)


@pytest.mark.parametrize("heads", [2, 3, 4])
def test_heads_are_merged_where_a_rank_has_one(heads: int) -> None:
    x = numpy.random.default_rng(1).standard_normal((5, heads, 4))

    def program() -> Any:
        with cc.Mesh(dp=2, tp=2):
            h = cc.shard(cc.shard(ag.tensor(x, {"dp": R, "tp": R}), "dp"), "tp", dim=1)
            found = [h.reshape(h.shape[0], -1), h.reshape(h.shape[0], h.shape[1] * 4), h.reshape(-1, h.shape[1] * 4)]
            return [cc.all_gather(cc.all_gather(y, "tp", dim=1), "dp", dim=0).numpy() for y in found]

    for found in cc.run(program, 4):
        assert all(numpy.allclose(y, x.reshape(5, -1)) for y in found)


def test_padding_of_the_other_dimensions_keeps_the_rows() -> None:
    widths = ((0, 0), (1, 0), (2, 1))

    def body() -> Any:
        w = ag.Parameter(numpy.ones(4))
        with ag.Tape() as tape:
            y = np.pad(part(X) * cc.cast(w, "dp", to=R), widths)
            ones = np.pad(part(X), widths, constant_values=1.0)
            loss = cc.all_reduce((y * y).sum(), "dp", to=I)
        tape.backward(loss)
        with pytest.raises(ag.LayoutError, match="pad"):
            np.pad(part(X), ((1, 0), (0, 0), (0, 0)))
        return whole(y), whole(ones), w.grad.numpy()

    for y, ones, gradient in on_three(body):
        assert numpy.allclose(y, numpy.pad(X, widths))
        assert numpy.allclose(ones, numpy.pad(X, widths, constant_values=1.0))
        assert numpy.allclose(gradient, 2 * (X * X).sum((0, 1)))


@pytest.mark.parametrize("dtype", [int, "uint8", bool])
def test_an_addend_is_not_rounded(dtype: Any) -> None:
    def body() -> None:
        with pytest.raises(ag.LayoutError, match=r"(?s)astype\(.*not linear.*fix: all_reduce"):
            part(X[:, 0, 0]).sum().astype(dtype)
        counts = part(numpy.arange(7)).sum()
        assert cc.all_reduce(counts.astype("int32").astype(float), "dp", to=I).item() == 21.0

    on_three(body)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.cov(x.T), lambda x: np.corrcoef(x.T), lambda x: np.histogram(x[:, 0], 3),
        lambda x: np.convolve(x[:, 0], [1.0, 2.0]), lambda x: np.correlate([1.0, 2.0], x[:, 0]),
        lambda x: numpy.unique(x), lambda x: numpy.allclose(x, 1.0), lambda x: numpy.array_equal(x, x),
        lambda x: np.polyfit(x[:, 0], x[:, 1], 1), lambda x: numpy.searchsorted(x[:, 0], 0.5),
        lambda x: numpy.nonzero(x),
        lambda x: numpy.isin([1.0], x),
    ],
)  # fmt: skip
def test_functions_without_derivative_of_a_part_are_refused(function: Callable[[Any], Any]) -> None:
    def body() -> None:
        x = part(X[:, :, 0])
        with pytest.raises(ag.LayoutError, match=r"(?s)its own part\n  fix: all_gather\(.*\n  or:  .*\.numpy\(\)"):
            function(x)
        function(cc.all_gather(x, "dp", dim=0))
        assert function(x.numpy()) is not None

    on_three(body)


@pytest.mark.parametrize("mode", ["mean", "maximum", "minimum", "median", "linear_ramp", "empty"])
def test_a_part_is_padded_where_it_is_whole(mode: str) -> None:
    def body() -> None:
        x = part(X[:, :, 0])
        y = cc.all_gather(np.pad(x, ((0, 0), (2, 1)), mode), "dp", dim=0)
        expected = numpy.pad(X[:, :, 0], ((0, 0), (2, 1)), "constant" if mode == "empty" else mode)  # type: ignore[call-overload]
        assert numpy.allclose(y.numpy(), expected)
        with pytest.raises(ag.LayoutError, match="pad"):
            np.pad(x, ((1, 1), (0, 0)), mode)

    on_three(body)


def test_other_functions_of_parts() -> None:
    def body() -> None:
        x = part(X[:, :, 0])
        whole = X[:, :, 0]
        for f in (lambda z: np.polyval([2.0, 0.5, 1.0], z), np.i0, lambda z: np.nanmedian(z, axis=1)):
            assert numpy.allclose(cc.all_gather(f(x), "dp", dim=0).numpy(), f(whole))
        with pytest.raises(ag.LayoutError):
            np.nanmedian(x, axis=0)

    on_three(body)


def test_functions_of_each_element_take_a_part() -> None:
    def body() -> None:
        x = part(X[:, 0, 0])
        assert numpy.array_equal(numpy.digitize(x, [0.0]), numpy.digitize(x.numpy(), [0.0]))
        assert numpy.array_equal(numpy.searchsorted([0.0, 0.5], x), numpy.searchsorted([0.0, 0.5], x.numpy()))
        assert numpy.isin(x, [2.0]).shape == tuple(int(n) for n in x.shape)
        assert numpy.array_repr(x) and numpy.ndim(x) == 1

    on_three(body)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("split", [np.split, np.array_split])
def test_a_part_is_not_split_where_it_is_divided(split: Any, rows: int) -> None:
    """A rank whose part has an odd extent is told what the others are, not that the extent must be even."""

    def body() -> None:
        x = part(X[:rows])
        with pytest.raises(ag.LayoutError, match=r"fix: all_gather\(x, 'dp', dim=0\)"):
            split(x, 2)
        for found, y in zip(split(x, 2, axis=2), numpy.split(X[:rows], 2, axis=2), strict=True):
            assert numpy.allclose(whole(found), y)
        for found, y in zip(split(cc.all_gather(x, "dp", dim=0), rows), numpy.split(X[:rows], rows), strict=True):
            assert numpy.allclose(found.numpy(), y)

    on_three(body)


def test_a_part_that_a_list_has_forgotten() -> None:
    """A list of the program forgets the rank number of its index: the part is labelled as the copies are."""
    w = numpy.arange(6.0)

    def body() -> Any:
        rank = cc.world().rank
        weight = ag.Parameter(w)
        with ag.Tape() as tape:
            own = [*np.split(cc.cast(weight, "dp", to=R), 3)][rank]
            y = (own * own).sum()
            with pytest.raises(ag.LayoutError, match=r"or:  cast\(y, 'dp', to=V\) first, if each rank has computed"):
                cc.all_reduce(y, "dp", to=I)
            loss = cc.all_reduce(cc.cast(y, "dp", to=cc.V), "dp", to=I)
        tape.backward(loss)
        return loss.item(), weight.grad

    for loss, gradient in on_three(body):
        assert numpy.isclose(loss, w @ w) and numpy.allclose(gradient.numpy(), 2 * w)


class Choice(list[Any]):
    """Parts of which `numpy.choose` picks."""

    def __getitem__(self, i: Any) -> Any:
        return [self[i.start]] if isinstance(i, slice) else np.choose(i % len(self), [*self])


# parts of a copy of shape (6, 3, 3), of which each of three ranks takes one
CUTS: dict[str, Callable[[Any], Any]] = {
    "split": lambda w: np.split(w, 3),
    "split at indices": lambda w: np.split(w, [1, 5]),
    "split of a later dimension": lambda w: np.split(w, 3, axis=-1),
    "array_split": lambda w: np.array_split(w, 4),
    "vsplit": lambda w: np.vsplit(w, 3),
    "hsplit": lambda w: np.hsplit(w, 3),
    "dsplit": lambda w: np.dsplit(w, 3),
    "choose": lambda w: Choice(np.split(w, 3)),
    "unstack": lambda w: np.unstack(w),
    "unstack of a later dimension": lambda w: np.unstack(w, axis=1),
    "split of PyTorch": lambda w: w.split(2) if isinstance(w, ag.Tensor) else np.split(w, 3),
    "chunk of PyTorch": lambda w: w.chunk(3) if isinstance(w, ag.Tensor) else np.split(w, 3),
}
PICKS: dict[str, Callable[[Any, Any], Any]] = {
    "rank": lambda parts, r: parts[r],
    "from the end": lambda parts, r: parts[-1 - r],
    "comparison": lambda parts, r: parts[r > 0],
    "slice": lambda parts, r: np.concatenate(parts[r : r + 1]),
}


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("cut", CUTS)
def test_a_part_that_a_rank_number_picks_is_the_ranks_own(cut: str, pick: str) -> None:
    w = numpy.random.default_rng(3).standard_normal((6, 3, 3))

    def own(x: Any, rank: Any) -> Any:
        return (PICKS[pick](CUTS[cut](x), rank) ** 2).sum()

    def body() -> Any:
        rank = cc.world().rank
        weight = ag.Parameter(w)
        with ag.Tape() as tape:
            with pytest.raises(ag.LayoutError, match=r"is Invariant, and each rank .*\n  fix: cast\(x, 'dp', to=R"):
                own(weight, rank)
            loss = cc.all_reduce(own(cc.cast(weight, "dp", to=R), rank), "dp", to=I)
        tape.backward(loss)
        return loss.item(), weight.grad

    serial = ag.Parameter(w)
    with ag.Tape() as tape:
        total = sum(own(serial, rank) for rank in range(3))
    tape.backward(total)
    for loss, gradient in on_three(body):
        assert numpy.isclose(loss, total.item()) and numpy.allclose(gradient.numpy(), serial.grad.numpy())


def test_parts_are_a_list_or_a_tuple_otherwise() -> None:
    x = ag.Parameter(numpy.arange(6.0))
    for parts, kind in ((np.split(x, 3), list), (np.unstack(x), tuple), (x.chunk(3), tuple)):
        assert isinstance(parts, kind)
        first, *others = parts
        assert first is parts[0] and others[-1] is parts[-1] and kind(parts[:2]) == kind((first, others[0]))
        with pytest.raises(IndexError, match="index out of range"):
            parts[9]
        for copied in (copy.copy(parts), pickle.loads(pickle.dumps(parts))):
            assert type(copied) is type(parts) and len(copied) == len(parts)
    halves = ag.grad(lambda x: sum((part**2).sum() for part in np.split(x, 2)))
    assert numpy.allclose(halves(numpy.arange(6.0)), 2 * numpy.arange(6.0))

    def body() -> None:
        parts = np.split(cc.cast(ag.Parameter(numpy.arange(6.0)), "dp", to=R), 2)
        with pytest.raises(IndexError, match="list index out of range"):
            parts[cc.world().rank + 2]
        assert parts[int(cc.world().rank > 5)].layout["dp"] is R  # a plain number states that the ranks agree
        parts[0] = parts[0] + 100  # what is picked is what the list holds
        assert parts[cc.world().rank * 0].numpy().tolist() == [100, 101, 102]
        parts[1] = 5
        assert parts[cc.world().rank * 0 + 1] == 5
        of_rows = np.split(cc.shard(ag.constant(X), "dp"), 2, axis=1)
        assert of_rows[0].layout["dp"] == Shard(0) and of_rows[cc.world().rank % 2].layout["dp"] is cc.V

    on_three(body)


@pytest.mark.parametrize("use", [
    np.stack, np.concatenate, np.array, np.asarray, np.hstack, np.vstack, np.dstack, np.sum, np.max, np.mean,
    np.column_stack, lambda parts: np.choose(ag.constant([0, 1]), parts), lambda parts: np.append(parts[0], parts),
    lambda parts: np.block([*parts]), lambda parts: ag.ops.stack(parts), lambda parts: np.einsum("ij->j", parts),
    lambda parts: numpy.stack(parts), lambda parts: sum(parts),
    lambda parts: np.where(ag.constant([True, False]), parts, 0.0),
    lambda parts: np.linalg.multi_dot([parts[0], np.stack(parts), parts[1]]),
])  # fmt: skip
def test_functions_of_the_parts_are_those_of_a_list(use: Callable[[Any], Any]) -> None:
    """The parts have a class of their own under a mesh."""
    w, found = numpy.arange(1.0, 5.0), []
    with cc.Mesh(dp=1):
        for kind, cut in ((list, lambda x: np.split(x, 2)), (tuple, lambda x: np.unstack(x.reshape(2, 2)))):
            for parts in (lambda x, cut=cut: cut(x), lambda x, kind=kind, cut=cut: kind([*cut(x)])):
                assert isinstance(parts(w), kind)
                weight = ag.Parameter(w)
                with ag.Tape() as tape:
                    loss = cc.cast((use(parts(cc.cast(weight, "dp", to=R))) ** 2).sum(), "dp", to=I)
                tape.backward(loss)
                found.append((loss.item(), weight.grad.numpy().tolist()))
            assert found[-1] == found[-2] and any(found[-1][1])


def test_the_parts_in_a_container() -> None:
    def body() -> None:
        x = cc.cast(ag.Parameter(numpy.arange(4.0)), "dp", to=R)
        parts = np.split(x, 2)
        leaves = tree_map(lambda p: p * 2, {"parts": parts})["parts"]
        assert type(leaves) is type(parts) and leaves[cc.world().rank % 2].layout["dp"] is cc.V

    on_three(body)
