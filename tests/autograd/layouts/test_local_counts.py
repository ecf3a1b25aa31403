"""Local counts of a sharded dimension: refused where they meet a value that belongs to all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from collectives import I, P, R, Shard, V

A = numpy.arange(1.0, 13.0).reshape(2, 6)

USES: dict[str, Callable[[Any, Any], Any]] = {
    "divide": lambda s, n: s / n,
    "reciprocal": lambda s, n: s * (1 / n),
    "reflected": lambda s, n: n * s,
    "square root": lambda s, n: s * n**-0.5,
    "numpy": lambda s, n: np.true_divide(s, n),
    "numpy's number": lambda s, n: s / numpy.sqrt(n),
    "logarithm": lambda s, n: np.log(s) - np.log(n),
    "where": lambda s, n: s / np.where(n > 2, n, 1),
}  # fmt: skip


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_a_local_count_is_refused_beside_every_label_but_varying(use: Callable[[Any, Any], Any]) -> None:
    with cc.Mesh(tp=1):
        x = ag.tensor(A, {"tp": Shard(1)}, global_shape=A.shape)
        for label in (R, I, P, Shard(0)):
            if label is P and use is USES["logarithm"]:
                continue  # the logarithm refuses it
            with pytest.raises(ag.LayoutError, match="local extent") as caught:
                use(ag.tensor(A[0], {"tp": label}), x.shape[1])
            assert "fix: x.global_shape[0] in place of x.shape[0], for an x that is Shard(0)" in str(caught.value)
            assert ("float(number)" in str(caught.value)) == isinstance(label, Shard)
        with pytest.raises(ag.LayoutError, match="local extent"):
            use(ag.constant(A[0]), x.shape[1])
        assert use(ag.tensor(A[0], {"tp": V}), x.shape[1]).layout == {"tp": V}
        assert use(ag.tensor(A[0], {"tp": R}), float(x.shape[1])).layout == {"tp": R}


def test_rank_numbers_and_offsets_stay_legal() -> None:
    with cc.Mesh(tp=1) as mesh:
        n, rank = ag.tensor(A, {"tp": Shard(1)}).shape[1], mesh.axis("tp").rank
        ids, s = ag.tensor(numpy.arange(4), {"tp": R}), ag.tensor(A[0], {"tp": R})
        assert (ids - rank * n).layout == (s + rank * n).layout == {"tp": V}
        assert (s * rank).layout == (s * (rank / 2)).layout == (s * np.maximum(rank, 1)).layout == {"tp": V}
        assert (s * int(numpy.add(rank, 1))).layout == {"tp": R}
        with pytest.raises(ag.LayoutError, match="a rank, or"):
            ag.tensor(A, {"tp": Shard(1)}) * (rank + 1)


def test_the_offered_fix_has_the_serial_gradient() -> None:
    def program() -> Any:
        with cc.Mesh(tp=2), ag.Tape() as tape:
            w = ag.Parameter(A[0], layout={"tp": R}, name="w")
            x = cc.shard(ag.tensor(A, layout={"tp": R}), "tp", dim=1)
            y = cc.shard(w, "tp", dim=0) * x
            mean = cc.all_reduce(y.sum(1, keepdims=True), "tp", to=R) / x.global_shape[1]
            loss = cc.cast((mean**2).sum(), "tp", to=P)
            tape.backward(cc.all_reduce(loss, "tp", to=I))
            return cc.all_reduce(w.grad, "tp", to=R).numpy() if w.grad.layout["tp"] is P else w.grad.numpy()

    serial = ag.grad(lambda w: (np.mean(w * A, axis=1) ** 2).sum())(A[0])
    for found in cc.run(program, 2):
        numpy.testing.assert_allclose(found, serial, rtol=1e-12)


@pytest.mark.parametrize(
    ("local", "fix"),
    [
        (lambda x: x.shape[0], "x.global_shape[0] in place of x.shape[0]"),
        (lambda x: x.shape[0] * 5, "x.global_shape[0] in place of x.shape[0]"),
        (lambda x: x.size, "math.prod(x.global_shape) in place of x.size"),
    ],
)
def test_the_fix_names_the_variable_that_is_sharded(local: Callable[[Any], Any], fix: str) -> None:
    with cc.Mesh(dp=1):
        x = cc.shard(ag.tensor(A, {"dp": R}), "dp")
        loss, n = cc.all_reduce((x * x).sum(), "dp", to=I), local(x)
        with pytest.raises(ag.LayoutError, match="local extent") as caught:
            loss / n
        assert f"  fix: {fix}   (the global extent)\n  at " in str(caught.value)


# -- slices of values that all ranks hold ------------------------------------------------------------------------------
TABLE = numpy.arange(24.0).reshape(6, 4) / 10
TAKEN: dict[str, Callable[..., Any]] = {
    "a slice": lambda p, n, rank: p[:n],
    "a slice of a slice": lambda p, n, rank: p[:, :][:n],
    "the second dimension": lambda p, n, rank: p.T[:, :n].T,
    "after an ellipsis": lambda p, n, rank: p.T[..., :n].T,
    "beside a new dimension": lambda p, n, rank: p[None, :n][0],
}
OWN: dict[str, Callable[..., Any]] = {
    "offsets": lambda p, n, rank: p[rank * n : (rank + 1) * n],
    "an offset": lambda p, n, rank: p[rank * n :][: int(n)],
    "a part": lambda p, n, rank: cc.shard(p, "sp"),
    "a prefix up to the end of the part": lambda p, n, rank: p[: (rank + 1) * n][-2:],
}


def of_positions(take: Callable[..., Any], label: Any = R) -> list[Any]:
    """The gradient of a table of positions, of which each rank uses those of its part of a sequence."""

    def program() -> Any:
        with cc.Mesh(sp=3) as mesh:
            p = ag.Parameter(TABLE, name="p")
            x = cc.shard(ag.tensor(A, {"sp": R}), "sp", dim=1)
            with ag.Tape() as tape:
                copies = cc.cast(p, "sp", to=R) if label is R else p
                h = x[0][:, None] * take(copies, x.shape[1], mesh.axis("sp").rank)
                loss = cc.all_reduce((h * h).sum(), "sp", to=I)
            tape.backward(loss)
            return p.grad.numpy()

    return cc.run(program, 3)


@pytest.mark.parametrize("take", TAKEN.values(), ids=list(TAKEN))
@pytest.mark.parametrize("label", [R, I])
def test_the_first_elements_of_a_whole_are_not_those_of_a_part(take: Callable[..., Any], label: Any) -> None:
    with pytest.raises(ag.LayoutError, match="would take the first elements of") as caught:
        of_positions(take, label)
    assert ", 'sp', dim=" in str(caught.value)


@pytest.mark.parametrize("take", OWN.values(), ids=list(OWN))
def test_the_part_that_the_error_offers_has_the_serial_gradient(take: Callable[..., Any]) -> None:
    for found in of_positions(take):
        numpy.testing.assert_allclose(found, 2 * A[0][:, None] ** 2 * TABLE)


def test_each_rank_may_take_the_first_elements_of_values_of_its_own() -> None:
    found = of_positions(lambda p, n, rank: cc.cast(p, "sp", to=V)[:n])
    squares = (A[0].reshape(3, 2) ** 2).sum(0)
    for gradient in found:
        numpy.testing.assert_allclose(gradient[:2], 2 * squares[:, None] * TABLE[:2])


RESHAPES: dict[str, Callable[[Any], Any]] = {
    "rows and tokens": lambda x: np.reshape(x, (-1, x.shape[-1])),
    "all but the rows": lambda x: np.reshape(x, (x.shape[0], -1)),
    "heads": lambda x: np.reshape(x, (*x.shape[:2], 3, -1)),
    "heads of width 2": lambda x: np.reshape(x, (*x.shape[:-1], -1, 2)),
    "heads merged": lambda x: np.reshape(x, (*x.shape[:-2], -1)),
    "a dimension of extent 1": lambda x: np.reshape(x, (*x.shape[:1], 1, *x.shape[1:])),
    "there and back": lambda x: np.reshape(np.reshape(x, (-1, x.shape[-1])), x.shape),
    "pairs of rows": lambda x: np.reshape(x, (-1, 2, *x.shape[1:])),
}


@pytest.mark.parametrize("reshape", RESHAPES)
def test_a_part_without_rows_becomes_what_the_others_become(reshape: str) -> None:
    """Rows and heads in parts, of which some ranks have none, and one rank has neither: labels and refusals agree."""
    extents = {"dp": (4, 2, 0), "tp": (2, 0)}

    def outcome(shape: tuple[int, ...], dims: tuple[int, ...]) -> Any:
        with cc.Mesh(dp=3, tp=2) as mesh:
            mine, labels = list(shape), {}
            for axis, dim in zip(mesh.names, dims, strict=True):
                mine[dim], labels[axis] = extents[axis][int(mesh.axis(axis).rank)], Shard(dim)
            whole = cc.from_local(numpy.ones(mine), labels)
            x = ag.tensor(whole.array, whole.layout, requires_grad=True)
            try:
                with ag.Tape() as tape:
                    y = RESHAPES[reshape](x)
            except (ag.LayoutError, ag.ShapeError):
                return "refused"
            tape.backward([y], [ag.tensor(numpy.ones(y.array.shape), y.layout.dual)])
            assert x.grad.shape == x.shape
            return [(type(label), label.dim, label.extent) for label in y.layout.labels], y.global_shape

    legal = 0
    for shape in ((4, 6), (4, 3, 6), (4, 5, 3, 4)):
        for dims in itertools.permutations(range(len(shape)), 2):
            found = cc.run(lambda shape=shape, dims=dims: outcome(shape, dims), 6)
            assert found.count("refused") in (0, *range(3, 7)), (shape, dims, found)  # refused on most, or nowhere
            if "refused" not in found:
                assert all(each == found[0] for each in found), (shape, dims, found)
                legal += 1
    assert legal >= 2


def test_rows_of_no_elements_are_merged() -> None:
    """A rank without a token has rows of no elements, which have no number where they are split again."""
    with cc.Mesh(dp=1, cp=1):
        x = ag.tensor(numpy.ones((3, 0, 5)), {"dp": Shard(0), "cp": V}, global_shape=(3, 0, 5), requires_grad=True)
        with ag.Tape() as tape:
            y = np.reshape(x, (-1, x.shape[-1]))
            assert y.layout["dp"] == Shard(0, 0, 0) and y.shape == (0, 5)
            z = np.reshape(y, (3, 0, 5))
            assert z.layout["dp"] == Shard(0)  # not agreed
        tape.backward([y], [ag.tensor(numpy.ones((0, 5)), y.layout.dual)])
        assert x.grad.shape == (3, 0, 5)
