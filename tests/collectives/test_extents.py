"""The extents of parts: a Shard has them only where the ranks agreed on them, and then any extents work everywhere."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, random
from autograd.errors import LayoutError, ReplicaMismatch, ShapeError
from autograd.layouts.partition import labels_of_parts
from collectives import I, P, R, Shard, V
from parallel import DataParallel
from parallel.verify import verify

from ..on_mesh import on
from .launch import launch

X = numpy.random.default_rng(0).standard_normal((12, 2))
Y = numpy.random.default_rng(1).standard_normal((12, 3))
W = numpy.random.default_rng(2).standard_normal((2, 3))
DIVISIONS = [(5, 4, 3), (0, 12, 0), (1, 0, 11), (4, 4, 4), (6, 6, 0)]


def part(whole: numpy.ndarray, extents: Any, rank: int, dim: int = 0) -> numpy.ndarray:
    start = sum(extents[:rank])
    return whole[(slice(None),) * dim + (slice(start, start + extents[rank]),)]


def serial() -> tuple[float, numpy.ndarray]:
    h = numpy.tanh(X @ W)
    return ((h - Y) ** 2).sum() / 12, X.T @ (2 * (h - Y) * (1 - h * h)) / 12


def trained(x: Any, y: Any) -> tuple[Any, float, numpy.ndarray]:
    """The first program that a user writes: data parallel, its loss divided by the global count."""
    w = ag.Parameter(W)
    with ag.Tape() as tape:
        error = np.tanh(x @ cc.cast(w, "dp", to=R)) - y
        loss = cc.all_reduce((error * error).sum(), "dp", to=I) / x.global_shape[0]
    tape.backward(loss)
    assert w.grad is not None
    return x.global_shape, loss.item(), w.grad.numpy()


def check_trained(results: list[Any]) -> None:
    loss, gradient = serial()
    for shape, found, g in results:
        assert shape == (12, 2)
        assert found == pytest.approx(loss, rel=1e-12)
        numpy.testing.assert_allclose(g, gradient, rtol=1e-11)


# -- a label is never a guess ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_shard_without_agreement_has_no_global_extent(ranks: int) -> None:
    def body(mesh: cc.Mesh) -> list[str]:
        extents = (5, 4, 3) if ranks == 3 else (12,)
        rank = int(mesh.axis("dp").rank)
        x = ag.tensor(part(X, extents, rank), {"dp": Shard(0)})
        assert x.layout == {"dp": Shard(0)} and x.layout["dp"].extent is x.layout["dp"].offset is None
        texts = []
        for ask in (lambda: x.global_shape, lambda: (x * 2).T.global_shape, lambda: random.normal(random.Key(0), x),
                    lambda: ag.jacobian(lambda t: t * t)(x), lambda: x.sum() / x.global_shape[0],
                    lambda: trained(x, ag.tensor(part(Y, extents, rank), {"dp": Shard(0)}))):  # fmt: skip
            with pytest.raises(LayoutError, match="have not agreed on the extents") as error:
                ask()
            texts.append(str(error.value))
        with pytest.raises(LayoutError, match="mean"):
            x.mean()
        return texts

    for text in sum(on(ranks, body), []):
        assert "axis 'dp'" in text and "cc.from_local(x, {'dp': Shard(" in text and "global_shape=(" in text


def test_the_fix_from_local_has_the_serial_gradient() -> None:
    for extents in DIVISIONS:
        check_trained(on(3, lambda mesh, n=extents: trained(
            *(cc.from_local(part(a, n, mesh.place[0]), {"dp": Shard(0)}) for a in (X, Y)))))  # fmt: skip


def test_the_fix_global_shape_has_the_serial_gradient() -> None:
    check_trained(on(3, lambda mesh: trained(
        *(ag.tensor(numpy.array_split(a, 3)[mesh.place[0]], {"dp": Shard(0)}, global_shape=a.shape) for a in (X, Y)))))


def test_the_fix_cast_to_the_label_of_another_value_has_the_serial_gradient() -> None:
    def body(mesh: cc.Mesh) -> Any:
        y = cc.from_local(part(Y, (5, 4, 3), mesh.place[0]), {"dp": Shard(0)})
        x = ag.tensor(part(X, (5, 4, 3), mesh.place[0])) * 1.0  # computed, and Varying
        assert x.layout == {"dp": V} and y.layout is not None
        unagreed = cc.cast(x, "dp", to=Shard(0))
        with pytest.raises(LayoutError, match="cast\\(x, 'dp', to=y.layout"):
            trained(unagreed, y)
        assert cc.cast(unagreed, "dp", to=y.layout["dp"]).global_shape == (12, 2)
        return trained(cc.cast(x, "dp", to=y.layout["dp"]), y)

    check_trained(on(3, body))


def test_a_stated_shape_is_compared_with_the_part_and_between_the_ranks() -> None:
    with pytest.raises(ShapeError, match=r"global_shape=\(12, 2\) it must have 4(?s:.*)cc.from_local"):
        on(3, lambda mesh: ag.tensor(part(X, (5, 4, 3), mesh.place[0]), {"dp": Shard(0)}, global_shape=(12, 2)))

    def body(mesh: cc.Mesh) -> Any:  # 12 and 13 rows both give rank 1 and 2 four rows
        x = ag.tensor(numpy.ones((4, 2)), {"dp": Shard(0)}, global_shape=[(12, 2), (13, 2), (12, 2)][mesh.place[0]])
        return cc.all_reduce(x.sum(), "dp", to=I) / x.global_shape[0]

    with pytest.raises(ReplicaMismatch, match="the global shapes of rank 1 differ from those of ranks 0, 2") as error:
        on(3, body)
    assert "f64[13,2]" in str(error.value) and "test_extents.py" in str(error.value)


@pytest.mark.parametrize("mode", ["off", "first", "ranks"])
def test_from_local_compares_the_other_extents(mode: str) -> None:
    def body(mesh: cc.Mesh) -> Any:
        return cc.from_local(numpy.ones((2, 3 + mesh.place[0])), {"dp": Shard(0)})

    cc.check(mode)
    try:
        with pytest.raises(ShapeError, match=r"(?s)do not form one array.*rank 1 of the axis.*shape \(2, 4\)"):
            on(2, body)
    finally:
        cc.check("first")


def test_parameters_follow_the_same_rule() -> None:
    whole = numpy.arange(14.0).reshape(7, 2)

    def body(mesh: cc.Mesh) -> Any:
        own = part(whole, (1, 4, 2), mesh.place[0])
        w = ag.Parameter(own, {"dp": Shard(0)})
        with pytest.raises(LayoutError, match="have not agreed"):
            _ = w.global_shape
        agreed = ag.Parameter(cc.from_local(own, {"dp": Shard(0)}))
        with ag.Tape() as tape:
            loss = (cc.all_gather(agreed, "dp", to=I) ** 2).sum() * 0.5
        tape.backward(loss)
        numpy.testing.assert_allclose(agreed.grad.numpy(), own)
        again = ag.Parameter(own + 1, layout=agreed.layout)
        assert again.global_shape == agreed.global_shape == agreed.grad.global_shape == (7, 2)
        with pytest.raises(ShapeError, match="parts of extents 1, 4, 2"):
            ag.Parameter(numpy.ones((9, 2)), layout=agreed.layout)
        return True

    assert all(on(3, body))


def test_from_local_agrees_again_on_the_extents_of_another_value() -> None:
    def body(mesh: cc.Mesh) -> Any:
        y = cc.from_local(part(Y, (5, 4, 3), mesh.place[0]), {"dp": Shard(0)})
        assert y.layout is not None
        x = cc.from_local(part(X, (1, 9, 2), mesh.place[0]), dict(y.layout))
        return x.global_shape, x.layout["dp"].extents

    assert on(3, body) == [((12, 2), (1, 9, 2))] * 3


def test_two_dimensions_and_two_axes() -> None:
    """Parts of a grid of 2 x 2 ranks: of two dimensions, and of one dimension that both axes divide."""
    whole = numpy.arange(35.0).reshape(7, 5)

    def body(mesh: cc.Mesh) -> Any:
        a, b = mesh.place
        tile = cc.from_local(part(part(whole, (6, 1), a), (2, 3), b, 1), {"dp": Shard(0), "tp": Shard(1)})
        assert tile.global_shape == (7, 5)
        rows = cc.all_gather(cc.all_gather(tile, "dp", dim=0), "tp", dim=1)
        numpy.testing.assert_array_equal(rows.numpy(), whole)

        extents = (3, 0, 1, 3)  # of the parts in order of rank; not those of array_split
        x = cc.from_local(part(whole, extents, 2 * a + b), {"dp": Shard(0), "tp": Shard(0)})
        assert x.global_shape == (7, 5) and x.layout is not None
        assert (x.layout["dp"].extents, x.layout["tp"].extents) == ((3, 4), ((3, 0), (1, 3))[a])
        numpy.testing.assert_array_equal(cc.all_gather(x, ("dp", "tp")).numpy(), whole)
        inner = cc.all_gather(x, "tp")
        assert inner.global_shape == (7, 5)
        numpy.testing.assert_array_equal(cc.all_gather(inner, "dp").numpy(), whole)
        drawn = random.normal(random.Key(3), x)
        numpy.testing.assert_array_equal(cc.all_gather(drawn, ("dp", "tp")).numpy(), random_whole)
        return True

    random_whole = random.normal(random.Key(3), (7, 5))
    assert all(on(4, body, dp=2, tp=2))


def test_parts_that_do_not_form_a_grid_are_refused() -> None:
    def body(mesh: cc.Mesh) -> Any:
        a, b = mesh.place
        return cc.from_local(numpy.ones((2 + a * b, 3)), {"dp": Shard(0), "tp": Shard(1)})

    with pytest.raises(ShapeError, match="one extent of dimension 0"):
        on(4, body, dp=2, tp=2)


def test_labels_are_values() -> None:
    (label,) = labels_of_parts(0, (5, 4, 3), (3,), (1,))
    assert (label.extent, label.offset, label.extents) == (12, 5, (5, 4, 3))
    assert pickle.loads(pickle.dumps(label)).key == label.key
    assert label == Shard(0) and label != Shard(0, 12, 4) and label != Shard(1)
    (even,) = labels_of_parts(0, (4, 4, 4), (3,), (1,))
    assert even.key == (0, 12, 4, 1, None)


# -- any extents work everywhere -------------------------------------------------------------------------------------


@pytest.mark.parametrize("extents", DIVISIONS)
def test_collectives_of_any_extents(extents: Any) -> None:
    """Every collective that takes parts, forward and backward, against the whole."""

    def body(mesh: cc.Mesh) -> Any:
        rank = mesh.place[0]
        x = cc.from_local(part(X, extents, rank), {"dp": Shard(0)}, requires_grad=True)
        with ag.Tape() as tape:
            whole = cc.all_gather(x, "dp")
            numpy.testing.assert_array_equal(whole.array, X)
            loss = cc.cast((whole * whole).sum(), "dp", to=I)
        tape.backward(loss)
        assert x.grad.layout == x.layout and x.grad.global_shape == (12, 2)
        numpy.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy())
        turned = cc.all_to_all(x, "dp", split_dim=1, concat_dim=0)
        assert turned.array.shape[0] == 12 and turned.global_shape == (12, 2)
        assert cc.all_to_all(turned, "dp", split_dim=0, concat_dim=1).global_shape == (12, 2)  # parts by the rule
        root = cc.gather(x, "dp", root=0)
        assert rank or (root.numpy() == X).all()
        z = np.exp(x).reshape(-1, 1, 2).transpose(1, 0, 2)
        assert z.global_shape == (1, 12, 2) and z.layout == {"dp": Shard(1)}
        double = np.concatenate([x, x * 2], 1).reshape(-1)
        assert double.global_shape == (48,)
        numpy.testing.assert_array_equal(
            cc.all_gather(double, "dp").numpy(), numpy.concatenate([X, 2 * X], 1).reshape(-1))
        w = cc.from_local(part(Y, extents, rank), {"dp": Shard(0)}, requires_grad=True)
        with ag.Tape() as tape:
            product = cc.all_reduce(x.T @ w, "dp", to=I)
            tape.backward((product * product).sum())
        numpy.testing.assert_allclose(product.numpy(), X.T @ Y, rtol=1e-12, atol=1e-12)
        numpy.testing.assert_allclose(w.grad.numpy(), part(2 * X @ (X.T @ Y), extents, rank), rtol=1e-10)
        taken = x[:, 1]
        assert taken.global_shape == (12,)
        mask = random.bernoulli(random.Key(1), x, 0.5)
        numpy.testing.assert_array_equal(mask.numpy(), part(numpy.asarray(drawn), extents, rank))
        return True

    drawn = random.bernoulli(random.Key(1), (12, 2), 0.5)
    assert all(on(3, body))


def test_halos_of_any_extents() -> None:
    def body(mesh: cc.Mesh) -> Any:
        x = cc.from_local(part(X, (5, 4, 3), mesh.place[0]), {"dp": Shard(0)}, requires_grad=True)
        with ag.Tape() as tape:
            y = cc.halo_exchange(x, "dp", 1)
            own = y[1:] - y[:-1]
            loss = cc.all_reduce((own * own).sum(), "dp", to=I)
        tape.backward(loss)
        return x.grad.numpy()

    step = numpy.diff(numpy.pad(X, ((1, 1), (0, 0))), axis=0)
    step[[5, 9]] *= 2  # both neighbours compute the step between their parts
    numpy.testing.assert_allclose(numpy.concatenate(on(3, body)), 2 * (step[:-1] - step[1:]), atol=1e-12)


def test_second_derivatives_of_any_extents() -> None:
    def body(mesh: cc.Mesh) -> Any:
        x = cc.from_local(part(X, (5, 4, 3), mesh.place[0]), {"dp": Shard(0)}, requires_grad=True)

        def f(x: Any) -> Any:
            whole = cc.all_gather(x, "dp", to=I)
            return (whole * whole * whole).sum()

        g = ag.grad(lambda x: cc.all_reduce((ag.grad(f)(x) ** 2).sum(), "dp", to=I))(x)
        return g.numpy()

    numpy.testing.assert_allclose(numpy.concatenate(on(3, body)), 36 * X**3, rtol=1e-11)


def test_parts_that_are_divided_differently_do_not_mix() -> None:
    def body(mesh: cc.Mesh) -> list[str]:
        rank, texts = mesh.place[0], []
        a = cc.from_local(numpy.ones((4, 4, 4)[rank]), {"dp": Shard(0)})
        for n in ((4, 3, 5), (4, 4, 4)):
            b = cc.from_local(numpy.ones(n[rank]), {"dp": Shard(0)})
            if n == (4, 4, 4):
                assert (a + b).global_shape == (12,)
                continue
            with pytest.raises((LayoutError, ShapeError)) as error:
                a + b
            texts.append(str(error.value))
        return texts

    first, *_ = on(3, body)
    assert "Shard(0) of 12 on 3 ranks does not mix with Shard(0) of 12 in parts 4, 3, 5" in first[0]

    def gathered(mesh: cc.Mesh) -> Any:
        x, y = (cc.from_local(part(X, n, mesh.place[0]), {"dp": Shard(0)}) for n in ((4, 4, 4), (4, 3, 5)))
        return (cc.all_gather(x, "dp", dim=0) + cc.all_gather(y, "dp", dim=0)).numpy()

    assert "fix: all_gather(a, 'dp', dim=0) and all_gather(b, 'dp', dim=0)" in first[0]
    for both in on(3, gathered):
        numpy.testing.assert_array_equal(both, 2 * X)

    def unagreed(mesh: cc.Mesh) -> Any:  # each rank compares its own parts: broadcasting must not hide the difference
        rank = mesh.place[0]
        a = ag.tensor(numpy.ones((1, 3)[rank]), {"dp": Shard(0)})
        return a + ag.tensor(numpy.ones((3, 1)[rank]), {"dp": Shard(0)})

    with pytest.raises(LayoutError, match="extent 1 on this rank does not mix with"):
        on(2, unagreed)


def test_a_part_takes_the_agreement_of_another_that_it_fits() -> None:
    def body(mesh: cc.Mesh) -> Any:
        rank = mesh.place[0]
        a = ag.tensor(part(X, (5, 4, 3), rank), {"dp": Shard(0)})
        assert (a + a).layout == {"dp": Shard(0)}
        b = cc.from_local(part(X, (5, 4, 3), rank), {"dp": Shard(0)})
        assert (a + b).global_shape == (b + a).global_shape == (12, 2)
        return True

    assert all(on(3, body))


def test_data_parallel_and_verify_take_any_extents() -> None:
    def body(mesh: cc.Mesh) -> Any:
        model = DataParallel(nn.Linear(2, 3, dtype=float), "dp")
        x, y = (cc.from_local(part(a, (5, 0, 7), mesh.place[0]), {"dp": Shard(0)}) for a in (X, Y))
        loss = lambda model, x, y: ((model(x) - y) ** 2).sum() / x.global_shape[0]
        assert verify(model, loss, x, y).require().passed
        with pytest.raises(LayoutError, match="have not agreed"):
            verify(model, loss, ag.tensor(x.numpy(), {"dp": Shard(0)}), y)
        return True

    assert all(on(3, body))


# -- draws -----------------------------------------------------------------------------------------------------------


KEY = random.Key(7, "draw")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_draw_stays_drawn_or_is_refused(ranks: int) -> None:
    def body(mesh: cc.Mesh) -> None:
        draw = random.normal(KEY, (4, 2))
        for use in (lambda: ag.tensor(draw, {"dp": Shard(0)}), lambda: ag.Parameter(draw, {"dp": Shard(0)}),
                    lambda: ag.tensor(draw, {"dp": V}), lambda: ag.tensor(draw, {"dp": P}),
                    lambda: cc.cast(draw, "dp", to=V), lambda: cc.cast(draw, "dp", to=Shard(0)),
                    lambda: ag.tensor(draw, requires_grad=True), lambda: ag.grad(lambda d: (d * d).sum())(draw),
                    lambda: draw[:2] * ag.tensor(X[:2]), lambda: draw[int(mesh.place[0])] * ag.tensor(X[0]),
                    ):  # fmt: skip
            with pytest.raises(LayoutError, match="same random numbers on every rank") as error:
                use()
            assert "axis 'dp'" in str(error.value) and "fix:" in str(error.value)

    on(ranks, body)


def test_the_fixes_for_a_draw_have_the_serial_values() -> None:
    whole = random.normal(KEY, (4, 2))
    mask = random.bernoulli(KEY, (4, 2), 0.5)

    def body(mesh: cc.Mesh) -> Any:
        draw, rank = random.normal(KEY, (4, 2)), mesh.axis("dp").rank
        parts = cc.shard(draw, "dp", dim=0)
        assert parts.global_shape == (4, 2)
        w = ag.Parameter(parts)
        assert w.layout == {"dp": Shard(0)} and w.global_shape == (4, 2)
        assert ag.Parameter(draw).layout == {"dp": I}
        own = draw[2 * rank : 2 * rank + 2]  # another part on each rank
        assert own.layout == {"dp": V}
        assert cc.cast(draw, "dp", to=P).layout == {"dp": P}
        x = cc.from_local(numpy.ones((2, 2)), {"dp": Shard(0)})
        drawn = random.normal(KEY, x), random.bernoulli(KEY, x, 0.5)
        return [y.numpy() for y in (parts, w, own, *drawn)]

    for rank, found in enumerate(on(2, body)):
        for values in found[:4]:
            numpy.testing.assert_array_equal(values, whole[2 * rank : 2 * rank + 2])
        numpy.testing.assert_array_equal(found[4], mask[2 * rank : 2 * rank + 2])


# -- leaves made of Tensors ------------------------------------------------------------------------------------------


def test_a_leaf_made_of_a_tensor_keeps_its_label_or_is_refused() -> None:
    with cc.Mesh(dp=1):
        for label in (R, I, V):
            x = ag.tensor(X, {"dp": label})
            assert ag.tensor(x).layout == {"dp": label}
        shard = cc.from_local(X, {"dp": Shard(0)})
        assert ag.tensor(shard).global_shape == X.shape
        for have, need in ((P, R), (P, V), (P, Shard(0)), (R, P), (I, Shard(0)), (R, Shard(0)), (Shard(0), R),
                           (Shard(0), P), (Shard(0), Shard(1)), (None, Shard(0))):  # fmt: skip
            x = ag.constant(X) if have is None else ag.tensor(X, {"dp": have})
            with pytest.raises(LayoutError, match=r"(?s)axis 'dp'.*contradicts.*fix: "):
                ag.tensor(x, {"dp": need})
        assert ag.Parameter(ag.tensor(X, {"dp": R})).layout == {"dp": I}
        for x in (shard, ag.tensor(X, {"dp": P})):
            with pytest.raises(LayoutError, match=r"(?s)^constant\(.*contradicts.*fix: all_"):
                ag.constant(x)


# -- masks and indices -----------------------------------------------------------------------------------------------

MASK = numpy.array([[True, False, True], [False, True, True], [True, True, True], [False, False, False]])


@pytest.mark.parametrize("key, dim, expected", [
    (MASK, 2, Shard(1)), ((MASK, 0), 2, None), ((slice(None), MASK[:3]), 0, Shard(0)), ((0, MASK[0]), 2, Shard(1)),
    (MASK, 0, None), (MASK, 1, None), ((MASK, slice(None)), 2, Shard(1)), ((slice(None), MASK[0]), 1, None),
    ((0, slice(None), numpy.array([0, 2])), 1, None),  # NumPy moves the index's dimension to the front
])  # fmt: skip
def test_a_mask_takes_as_many_dimensions_as_it_has(key: Any, dim: int, expected: Any) -> None:
    values = numpy.random.default_rng(0).standard_normal((4, 3, 3))
    with cc.Mesh(dp=1):
        keys = key if isinstance(key, tuple) else (key,)
        constant = tuple(ag.constant(k) if isinstance(k, numpy.ndarray) else k for k in keys)
        x = cc.from_local(values, {"dp": Shard(dim)}, requires_grad=True)
        if expected is None:
            with pytest.raises(LayoutError, match=f"mixes along dimension {dim}"):
                x[constant]
            return
        with ag.Tape() as tape:
            y = x[constant]
            loss = cc.all_reduce((y * y).sum(), "dp", to=I)
        tape.backward(loss)
        assert y.layout == {"dp": expected} and y.global_shape == values[key].shape
        needed = numpy.zeros_like(values)
        needed[key] = 2 * values[key]
        numpy.testing.assert_array_equal(x.grad.numpy(), needed)
        v = ag.tensor(values, requires_grad=True)
        assert v[key].layout == {"dp": V}


# -- addends are not values ------------------------------------------------------------------------------------------


def test_no_python_number_of_an_addend() -> None:
    with cc.Mesh(dp=1):
        p = ag.tensor(3.25, {"dp": P})
        for use in (float, int, bool, complex, lambda x: x.item(), lambda x: f"{x:.1f}", lambda x: [0][x]):  # fmt: skip
            with pytest.raises(LayoutError, match=r"(?s)addend of the value.*fix: all_reduce\([px], 'dp', to=I\)"):
                use(p)
        assert f"{p}" == repr(p) == "Tensor(this rank's addend: 3.25, layout={dp: P})"
        total = cc.all_reduce(p, "dp", to=I)
        assert total.item() == float(total) == 3.25 and f"{total:.1f}" == "3.2" and bool(total)


def test_no_plain_array_of_an_addend() -> None:
    """The gradient of an R parameter is Partial: an update by hand with a rank's addend would let the copies drift."""
    rows = numpy.arange(6.0).reshape(3, 2)

    def program(update: Callable[[Any], Any]) -> Any:
        with cc.Mesh(dp=3) as mesh:
            w = ag.Parameter(numpy.ones(2), {"dp": R})
            with ag.Tape() as tape:
                loss = cc.all_reduce((ag.tensor(rows[int(mesh.axis("dp").rank)]) * w).sum(), "dp", to=I)
            tape.backward(loss)
            w.data = w.numpy() - update(w)
            return w.numpy()

    uses = (
        lambda w: w.grad.numpy(), lambda w: w.grad.tolist(), lambda w: w.grad.data, lambda w: numpy.asarray(w.grad),
        lambda w: numpy.array(w.grad, copy=False),
    )  # fmt: skip
    for use in uses:
        fix = r"(?s)w\.grad is Partial: .*fix: all_reduce\(w\.grad, 'dp', to=I\)"
        with pytest.raises(LayoutError, match=fix) as told:
            cc.run(lambda use=use: program(use), ranks=3)
        assert "or:  w.grad.local   (this rank's addend)" in str(told.value)
    for found in cc.run(lambda: program(lambda w: cc.all_reduce(w.grad, "dp", to=I).numpy()), ranks=3):
        numpy.testing.assert_allclose(found, 1 - rows.sum(axis=0))
    with pytest.raises(ReplicaMismatch):  # at the end of the block
        cc.run(lambda: program(lambda w: w.grad.local), ranks=3)


# -- over MPI --------------------------------------------------------------------------------------------------------

def test_processes() -> None:
    done = launch("extents_program.py", 3, limit_s=60)
    assert done.out.count("done") == 3, done.out + done.err
    assert done.code != 0 and "the global shapes of rank 1 differ" in done.err, done.out + done.err


# -- reshape of parts that are empty on a rank -------------------------------------------------------------------------
def test_an_empty_part_is_flattened_like_the_others() -> None:
    """``x.reshape(x.shape[0], -1)``, which NumPy refuses for an array without rows."""
    whole = numpy.arange(12.0).reshape(2, 3, 2)

    def program() -> tuple[Any, Any]:
        with cc.Mesh(dp=3):
            x = cc.shard(ag.tensor(whole, {"dp": R}), "dp")
            w = ag.Parameter(numpy.arange(6.0))
            with ag.Tape() as tape:
                y = x.reshape(x.shape[0], -1)
                loss = cc.all_reduce(((y @ cc.cast(w, "dp", to=R)) ** 2).sum(), "dp", to=I)
            tape.backward(loss)
            return y.global_shape, w.grad.numpy()

    rows = whole.reshape(2, 6)
    for shape, gradient in cc.run(program, 3):
        assert shape == (2, 6)
        numpy.testing.assert_allclose(gradient, 2 * rows.T @ (rows @ numpy.arange(6.0)))


def test_an_empty_part_has_no_rows_to_give_an_extent() -> None:
    def program() -> str:
        with cc.Mesh(dp=3):
            x = cc.shard(ag.tensor(numpy.ones((2, 3)), {"dp": R}), "dp")
            try:
                return str(x.reshape(3, -1).shape)
            except (LayoutError, ShapeError) as error:
                return str(error)

    found = cc.run(program, 3)
    assert all("reshape mixes along dimension 0" in text and "x.shape[0]" in text for text in found[:2])
    assert "this rank's part is empty along dimension 0" in found[2] and "x.shape[0]" in found[2]


# -- counts that an all_to_all receives, where the program knows them --------------------------------------------------
SENT = [[1, 0, 2], [0, 0, 0], [3, 1, 0]]  # by rank, then to rank


def exchanges(mode: str, received: Any = None) -> list[Any]:
    """Exchange rows by SENT under a check mode, and return the rows of each rank and its calls of the transport."""

    def body(mesh: cc.Mesh) -> Any:
        rank = int(mesh.place[0])
        mine, theirs = SENT[rank], [row[rank] for row in SENT]
        x = ag.tensor(numpy.full((sum(mine), 2), float(rank)))
        group, calls = mesh.axis("dp").group, []
        inner = group.repeat

        def counted(*args: Any) -> Any:
            calls.append(args)
            return inner(*args)

        group.repeat = counted  # the exchange of the counts; the rows themselves are a Request
        y = cc.all_to_all(x, "dp", 0, 0, counts=mine, received=theirs if received is None else received(rank, theirs))
        return y.numpy()[:, 0].tolist(), len(calls)

    cc.check(mode)
    try:
        return on(3, body)
    finally:
        cc.check("first")


@pytest.mark.parametrize("mode", ["off", "first"])
def test_counts_that_are_received_are_exchanged_only_while_calls_are_compared(mode: str) -> None:
    rows = [[r for r in range(3) for _ in range(SENT[r][s])] for s in range(3)]
    assert exchanges(mode) == [(each, int(mode != "off")) for each in rows]


def test_counts_that_the_other_ranks_do_not_send_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"received=\[1, 0, 2\] was given; the ranks send \[1, 0, 3\] to rank 0"):
        exchanges("first", lambda rank, theirs: [1, 0, 2] if rank == 0 else theirs)
    with pytest.raises(ShapeError, match="rank 0, sends .*which number 0 is 1"):
        exchanges("first", lambda rank, theirs: [2, 0, 3])
    with pytest.raises(ShapeError, match="needed: 3 numbers >= 0"):
        exchanges("off", lambda rank, theirs: theirs[:2])
    with cc.Mesh(dp=1), pytest.raises(ShapeError, match="received=.* without counts"):
        cc.all_to_all(ag.tensor(X), "dp", 0, 0, received=[12])
    with cc.Mesh(dp=1):
        assert cc.all_to_all(ag.tensor(X), "dp", 0, 0, counts=[12], received=[12]).shape == (12, 2)
