"""The face of NumPy: complex operands, NumPy's own functions on Tensors, methods, what is refused, every name."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.engine.multi_output import Several
from autograd.engine.primitive import registry
from autograd.engine.tensor import TENSORS
from autograd.ops.tensor_methods import METHODS
from autograd.testing import check_adjoint, check_grads
from autograd.testing.listing import names

from ...proofs.operations import Case
from ...proofs.operations.complex import COMPLEX
from ...tables import each

Array = Any
RNG = numpy.random.default_rng(0)
every = each(COMPLEX, lambda c: f"functions in {c.label[0]}", lambda c: c.label)


def raw(x: Any) -> Any:
    return x.array if x.__class__ in TENSORS else x


# -- complex numbers -------------------------------------------------------------------------------------------------


@every
def test_complex_values_are_numpys(c: Case) -> None:
    args = c.draw()
    expected = numpy.asarray(c.numpy(*args))
    for found in (raw(c.f(*map(ag.tensor, args))), c.f(*args)):
        assert numpy.asarray(found).dtype == expected.dtype
        numpy.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("c", COMPLEX, ids=lambda c: c.label)  # each takes as long as many others
def test_complex_derivatives_to_order_2(c: Case) -> None:
    """Against central differences along both axes, in both modes."""
    check_grads(c.f, *c.draw(), order=2, rtol=3e-6, atol=3e-6)


@every
def test_complex_adjoint_against_forward_mode(c: Case) -> None:
    args = c.draw(2)
    check_adjoint(c.f, *args, rtol=1e-9)
    ct = numpy.random.default_rng(5).standard_normal(numpy.shape(c.f(*args)))
    found = (lambda *xs: ag.vjp(c.f, *xs)[1](ct)) if len(args) == 1 else (lambda *xs: ag.vjp(c.f, *xs)[1](ct)[0])
    check_adjoint(found, *args, rtol=1e-8)


@every
def test_complex64_stays_complex64(c: Case) -> None:
    args = [a.astype(numpy.complex64 if a.dtype.kind == "c" else numpy.float32) for a in c.draw()]
    y, pullback = ag.vjp(c.f, *args)
    assert y.dtype == numpy.asarray(c.numpy(*args)).dtype
    found = pullback(numpy.ones(y.shape, y.dtype))
    for a, g in zip(args, found if len(args) > 1 else (found,), strict=True):
        assert g.dtype == a.dtype and g.shape == a.shape


def test_the_convention_is_hips_autograds() -> None:
    """The gradient of a real L at z = x + iy is dL/dx - i dL/dy."""
    z = numpy.array(1.0 + 2.0j)
    assert ag.grad(lambda x: np.real(x) ** 2 + 3 * np.imag(x))(z) == pytest.approx(2 - 3j)
    assert ag.grad(lambda x: np.abs(x) ** 2)(z) == pytest.approx(2 - 4j)
    assert ag.grad(np.abs)(numpy.array(0j)) == 0


# -- NumPy's own functions -------------------------------------------------------------------------------------------

X = RNG.uniform(0.5, 1.5, (3, 3)) + 2 * numpy.eye(3)
CALLS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: numpy.sum(x, axis=0),
    "concatenate": lambda x: numpy.concatenate([x, x * 2, numpy.ones((1, 3))]),
    "stack": lambda x: numpy.stack([x[0], x[1]]),
    "where": lambda x: numpy.where(X > 1, x, 0.0),
    "inv": lambda x: numpy.linalg.inv(x),
    "svd": lambda x: numpy.linalg.svd(x, compute_uv=False),
    "eigh": lambda x: numpy.linalg.eigh(x).eigenvalues,
    "slogdet": lambda x: numpy.linalg.slogdet(x).logabsdet,
    "fft": lambda x: numpy.real(numpy.fft.fft(x)),
    "einsum": lambda x: numpy.einsum("ij,jk", x, X),
    "dot with an array first": lambda x: numpy.dot(X, x),
    "matmul with an array first": lambda x: X @ x,
    "arctan2": lambda x: numpy.arctan2(x, X),
    "add.reduce": lambda x: numpy.add.reduce(x),
    "add.reduce over all": lambda x: numpy.add.reduce(x, axis=None),
    "multiply.reduce": lambda x: numpy.multiply.reduce(x, axis=1, keepdims=True),
    "maximum.reduce": lambda x: numpy.maximum.reduce(x, axis=1),
    "add.accumulate": lambda x: numpy.add.accumulate(x, axis=1),
    "subtract.outer": lambda x: numpy.subtract.outer(x[0], X),
    "transpose": lambda x: numpy.transpose(x, (1, 0)),
    "sort": lambda x: numpy.sort(x, axis=None),
    "full_like": lambda x: numpy.full_like(X, 2.0) * x,
    "zeros_like": lambda x: numpy.zeros_like(x) + x,
    "pad": lambda x: numpy.pad(x, 1, mode="reflect"),
    "split": lambda x: numpy.split(x, 3)[1],
    "gradient": lambda x: numpy.gradient(x)[1],
    "max": lambda x: numpy.max(x, 1),
    "amin": lambda x: numpy.amin(x, 0),
    "round": lambda x: numpy.round(x) * x,
    "isfinite": lambda x: numpy.where(numpy.isfinite(x), x, 0.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_numpys_functions_on_tensors_are_recorded(name: str) -> None:
    f = CALLS[name]
    numpy.testing.assert_allclose(raw(f(ag.tensor(X))), f(X), rtol=1e-12)
    check_grads(lambda x: f(ag.tensor(x) if not isinstance(x, ag.Tensor) else x), X, order=1)


def test_every_name_of_the_face_stands_for_numpys() -> None:
    from autograd.ops.numpy_protocol import table

    pairs = table()
    assert pairs[numpy.sum] is np.sum and pairs[numpy.linalg.inv] is np.linalg.inv
    assert pairs[numpy.fft.fft] is np.fft.fft and pairs[numpy.exp] is np.exp and len(pairs) > 250


def test_ranks_on_threads_look_functions_up_while_the_table_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank that needs the table makes it; another one does not see a part of it."""
    from autograd.ops import numpy_protocol

    seen: list[Any] = []

    class Theirs:
        first = staticmethod(len)

        @property
        def second(self) -> Any:
            if threading.current_thread() is threading.main_thread():
                other = threading.Thread(target=lambda: seen.append(numpy.exp(ag.tensor(1.0))))
                other.start()
                other.join()
            return max

    monkeypatch.setitem(sys.modules, "theirs", cast(Any, Theirs()))
    monkeypatch.setitem(sys.modules, "autograd.theirs", cast(Any, SimpleNamespace(first=min, second=sum)))
    monkeypatch.setattr(numpy_protocol, "_MODULES", ("theirs", *numpy_protocol._MODULES))
    numpy_protocol.table.cache_clear()
    try:
        assert numpy_protocol.table()[len] is min
    finally:
        numpy_protocol.table.cache_clear()
    assert seen[0].__class__ in TENSORS


def test_every_public_name_of_numpy_is_here() -> None:
    assert not [n for n in numpy.__all__ if not hasattr(np, n)]
    assert not [n for n in numpy.linalg.__all__ if not hasattr(np.linalg, n)]
    assert not [n for n in numpy.fft.__all__ if not hasattr(np.fft, n)]
    assert np.random.RandomState is numpy.random.RandomState and np.random.seed is not None
    assert np.float64 is numpy.float64 and np.pi == numpy.pi and "exp" in vars(np), "a plain attribute"


def test_every_operation_with_a_name_of_numpy_is_here() -> None:
    """But for `nonzero` and `put` of indexing, which are other functions than NumPy's."""
    numpys = [n for n in names() if n in numpy.__all__ and getattr(np, n) is getattr(numpy, n)]
    missing = {n: registry[n].declared.module for n in numpys if n not in ("nonzero", "put")}
    assert not missing, f"operations that autograd.numpy has not: {missing}; fix: their names in __all__ of those files"


def test_functions_without_a_derivative() -> None:
    x = ag.tensor([3.0, 1.0, 2.0], requires_grad=True)
    assert numpy.nextafter(x, 9.0).shape == (3,), "no tape is recording"
    with ag.Tape():
        assert numpy.allclose(x, x * 1.0) and numpy.array_equal(x, [3, 1, 2]) and numpy.ndim(x) == 1
        assert numpy.nonzero(x > 1.5)[0].tolist() == [0, 2] and numpy.argsort(x).numpy().tolist() == [1, 2, 0]
        assert numpy.searchsorted(numpy.array([1.5, 2.5]), x).tolist() == [2, 0, 1]
        for f in (lambda: numpy.histogram(x), lambda: numpy.nextafter(x, 9.0), lambda: numpy.trim_zeros(x),
                  lambda: np.nanquantile(x, 0.5), lambda: numpy.multiply.reduceat(x, [0])):  # fmt: skip
            with pytest.raises(ag.NotDifferentiable, match="(?s)Fix: .*test_numpy.py"):
                f()
        with ag.no_grad():
            assert len(numpy.histogram(x, 2)[0]) == 2


def test_a_followed_value_does_not_become_an_array_unseen() -> None:
    x = ag.Parameter([1.0, 2.0])
    with ag.Tape():
        for f in (lambda: numpy.array(x), lambda: numpy.asarray(x * 2), lambda: numpy.array([x[0], x[1]]),
                  lambda: numpy.zeros(2).__iadd__(x), lambda: numpy.add(x, 1.0, out=numpy.zeros(2)),
                  lambda: np.sum(x, where=numpy.array([True, False])), lambda: np.exp2(x).sort()):  # fmt: skip
            with pytest.raises((ag.NotDifferentiable, ag.SavedArrayError), match="[Ff]ix: "):
                f()
        assert np.array([x[0], x[1]]).requires_grad
        with ag.no_grad():
            assert numpy.asarray(x).tolist() == [1, 2]
    assert numpy.asarray(x).tolist() == [1, 2]


def test_indices_are_made_of_a_followed_value() -> None:
    """A conversion to whole numbers or booleans has no derivative, so that nothing is lost."""
    x = ag.Parameter([2.5, 0.0])
    with ag.Tape():
        assert numpy.int64(x).tolist() == [2, 0] and np.int32(x).dtype == "int32"
        assert numpy.asarray(x * 2, bool).tolist() == [True, False]
        for kind in ("float64", "float32", "complex128", object):
            with pytest.raises(ag.NotDifferentiable, match="Fix: "):
                numpy.asarray(x, kind)


# -- what joins and chooses ------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Any, Any], Any]] = {
    "r_ of rows": lambda n, x: n.r_[x, X, x * 2], "r_ of vectors and slices": lambda n, x: n.r_[x[0], 1:4, X[1], 2.0],
    "r_ of one": lambda n, x: n.r_[x], "r_ of numbers": lambda n, x: n.r_[x[0, 0], 1.0, x[1, 2]],
    "r_ of three dimensions": lambda n, x: n.r_[x[None], X[None]], "c_ of rows": lambda n, x: n.c_[x, X, x * 2],
    "c_ of vectors": lambda n, x: n.c_[x[0], X[1], 1:4], "c_ of both": lambda n, x: n.c_[x, X[0]],
    "linspace": lambda n, x: n.linspace(x[0], x, 4, axis=-1), "linspace of none": lambda n, x: n.linspace(x, 1.0, 0),
    "linspace of one": lambda n, x: n.linspace(x[0], x[1, 0], 1), "where": lambda n, x: n.where(X > 1, x, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_what_is_joined_is_numpys(name: str) -> None:
    f = PARTS[name]
    expected = f(numpy, X * 3)
    found = f(np, ag.tensor(X * 3))
    assert found.shape == expected.shape
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=1e-14)
    check_grads(lambda x: f(np, x), X * 3, order=1)


def test_astype_of_lists() -> None:
    assert float(ag.grad(lambda x: np.sum(np.astype([x, 2 * x], numpy.float32) * 1.5))(2.0)) == 4.5
    with pytest.raises(ag.RingtapeError, match="needed: an array or numbers"):
        np.astype([1, [2, 3]], float)


def test_where_takes_keywords_and_keeps_numbers() -> None:
    """A choice between Python numbers stays one, which does not widen what it meets."""
    x = ag.tensor(X.astype("float32"))
    found = np.where(condition=X > 1, x=x, y=0.0)
    assert found.dtype == "float32" and numpy.array_equal(found.numpy(), numpy.where(X > 1, X.astype("float32"), 0))
    for condition in (True, False):
        assert type(np.where(condition, 1, 2)) is int and type(np.where(condition, 1, 2.0)) is float
        assert np.where(condition, 1, 2.0) == (1 if condition else 2)
    assert (np.where(True, 0.5, 1.5) * x).dtype == "float32"
    for given in ((True, [1, 2], [3, 4]), (numpy.bool_(True), 1, 2), ([True, False], 1.0, 2.0)):
        plain = np.where(*given)
        assert isinstance(plain, numpy.ndarray) and numpy.array_equal(plain, numpy.where(*given))
    with pytest.raises(ag.ShapeError, match="both or neither"):
        np.where(True, x=1)


def test_no_negative_number_of_values() -> None:
    with pytest.raises(ag.ShapeError, match="num=-1"):
        np.linspace(ag.tensor(1.0), 2.0, -1)


# -- methods ---------------------------------------------------------------------------------------------------------

GIVEN: dict[str, tuple[Any, ...]] = {
    "argpartition": (1,), "astype": ("float32",), "choose": ([X[0] * 0 + 1, X[0]],), "clip": (1.0, 2.0),
    "compress": ([True, False, True], 0), "dot": (X,), "repeat": (2, 0), "reshape": (9,), "searchsorted": (1.2,),
    "swapaxes": (0, 1), "take": ([0, 1],), "round": (1,),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_numpys(name: str) -> None:
    a = {"choose": numpy.array([0, 1, 0]), "searchsorted": numpy.array([1.0, 2.0])}.get(name, X)
    args = GIVEN.get(name, ())
    if not hasattr(numpy.ndarray, name) or name == "ptp":  # NumPy 2.1 has one that raises
        expected = getattr(numpy, name)(a, *args)
    else:
        expected = getattr(a, name)(*args)
    found = getattr(ag.tensor(a), name)(*args)
    for p, q in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, expected)), strict=True):
        numpy.testing.assert_allclose(raw(p), q, rtol=1e-12)
        assert numpy.asarray(raw(p)).dtype == numpy.asarray(q).dtype


def test_operators_and_properties() -> None:
    a, n = numpy.array([5.5, -2.5]), numpy.array([6, 3])
    x, k = ag.tensor(a), ag.tensor(n)
    for ours, theirs in ((x % 2, a % 2), (x // 2, a // 2), (7.0 // x, 7.0 // a), (k & 2, n & 2), (k | 1, n | 1),
                         (k ^ 5, n ^ 5), (~k, ~n), (k << 1, n << 1), (k >> 1, n >> 1), (+x, a),
                         (divmod(x, 2)[0], a // 2),
                         (x.real, a), (x.imag, a.imag), (x.T, a.T), (round(x, 0), a.round(0)),
                         (x.mean(0, keepdims=True), a.mean(0, keepdims=True)),
                         (x.sum(dtype="float32"), a.sum())):  # fmt: skip
        numpy.testing.assert_allclose(raw(ours), theirs)
    assert complex(x[0]) == 5.5 and x.nbytes == 16 and x.tolist() == [5.5, -2.5] and [10, 20][ag.tensor(1)] == 20
    with pytest.raises(ag.SavedArrayError, match=r"autograd.numpy.sort\(x\)"):
        x.sort()


# -- what the cases leave out ----------------------------------------------------------------------------------------


def test_derivatives_at_zeros_and_ends() -> None:
    zero = numpy.zeros(2)
    assert ag.grad(np.std)(numpy.ones(3)).tolist() == [0, 0, 0]
    assert ag.grad(np.linalg.norm)(zero).tolist() == [0, 0]
    assert ag.grad(lambda x: np.hypot(x[0], x[1]))(zero).tolist() == [0, 0]
    assert ag.grad(lambda x: np.sum(np.clip(x, 0.0, 1.0)))(numpy.array([0.0, 0.5, 1.0, 2.0])).tolist() == [0, 1, 0, 0]
    assert ag.grad(lambda x: np.sum(np.nan_to_num(x)))(numpy.array([1.0, numpy.nan, numpy.inf])).tolist() == [1, 0, 0]
    third = ag.grad(ag.grad(ag.grad(np.sinc)))
    assert ag.grad(ag.grad(np.sinc))(0.0) == pytest.approx(-(numpy.pi**2) / 3) and third(0.0) == 0.0


def test_fmax_leaves_nan_out() -> None:
    x, y = numpy.array([1.0, numpy.nan, 3.0]), numpy.array([2.0, 2.0, numpy.nan])
    a, b = ag.grad(lambda p, q: np.sum(np.fmax(p, q)), (0, 1))(x, y)
    assert a.tolist() == [0, 0, 1] and b.tolist() == [1, 1, 0]


def test_equal_eigenvalues_of_functions_of_the_matrix() -> None:
    """The trace of the square does not see which vectors span a space: its derivative exists, and is 2 x."""
    x = numpy.diag([1.0, 1.0, 2.0])

    def f(a: Any) -> Any:
        w, v = np.linalg.eigh((a + a.T) / 2)
        return np.trace((v * w**2) @ v.T)

    numpy.testing.assert_allclose(ag.grad(f)(x), 2 * x, atol=1e-12)


@pytest.mark.parametrize("name", ["median", "nanmedian", "percentile", "quantile"])
def test_the_input_is_not_overwritten(name: str) -> None:
    x = numpy.array([3.0, 1.0, 2.0, 5.0, 0.0])
    more = {"percentile": (30.0,), "quantile": (0.3,)}.get(name, ())
    for requires_grad in (False, True):
        w = ag.tensor(x.copy(), requires_grad=requires_grad)
        y = getattr(np, name)(w, *more, overwrite_input=True)
        assert w.numpy().tolist() == x.tolist() and y.item() == getattr(numpy, name)(x, *more)


def test_interp_and_piecewise() -> None:
    x, y = numpy.array([-0.7, 0.15, 2.5, 9.0]), RNG.standard_normal(4)
    at = numpy.array([-0.5, 0.05, 0.5, 3.0])
    numpy.testing.assert_allclose(raw(np.interp(ag.tensor(x), at, y)), numpy.interp(x, at, y))
    check_grads(lambda a, b: np.interp(a, at, b), x, y)


def test_what_is_not_determined_is_refused_where_it_is_recorded() -> None:
    x = RNG.standard_normal((3, 2))
    for f in (lambda z: np.linalg.svd(z)[1], lambda z: np.linalg.qr(z, "complete")[1],
              lambda z: np.pad(z, 1, "reflect", reflect_type="odd")):  # fmt: skip
        with pytest.raises(ag.NotDifferentiable, match="needed|Fix"):
            ag.grad(lambda z, f=f: np.sum(f(z)))(x)
    assert np.linalg.svd(ag.tensor(x))[0].shape == (3, 3), "no tape"


@pytest.mark.parametrize("text, shapes", [
    ("ij,jk,kl,lm->im", [(2, 3), (3, 4), (4, 2), (2, 3)]), ("i,i,i->", [(3,)] * 3), ("ij,ij,ij->ij", [(2, 3)] * 3),
    ("...i,...i,j->...j", [(2, 3), (2, 3), (4,)]), ("ab,b...,c->ac...", [(2, 3), (3, 2, 2), (2,)]),
    ("i...,i", [(3, 2), (3,)]),
    ("ij", [(2, 3)]), ("ji", [(2, 3)]), ("iji->j", [(2, 3, 2)]), ("ij,jk", [(2, 1), (3, 2)]),
])  # fmt: skip
def test_einsum(text: str, shapes: Any) -> None:
    xs = [RNG.standard_normal(s) for s in shapes]
    numpy.testing.assert_allclose(raw(np.einsum(text, *map(ag.tensor, xs))), numpy.einsum(text, *xs), atol=1e-13)
    check_adjoint(lambda *a: np.einsum(text, *a), *xs)
    check_grads(lambda *a: np.einsum(text, *a), *xs, order=1, modes=["reverse"])


def test_einsum_refuses_what_numpy_refuses() -> None:
    x = ag.tensor(numpy.ones((2, 3)))
    for args in (("ijk", x), ("ij->ik", x), ("ij,jk", x, x), ("ij,jk", x), ("ij->ii", x)):
        with pytest.raises(ag.ShapeError, match="einsum"):
            np.einsum(*args)


# -- operations with several outputs -----------------------------------------------------------------------------------


def test_only_the_outputs_that_are_used_are_differentiated() -> None:
    heard: list[tuple[bool, ...]] = []

    def rule(cts: Any, ys: Any, x: Any) -> Any:
        heard.append(tuple(ct is not None for ct in cts))
        return sum(ct * k for k, ct in enumerate(cts, 1) if ct is not None)

    three = Several("three (example)", "a", lambda x: (x, 2 * x, (3 * x)), rule,
                    outputs=lambda x: [(x.shape, x.dtype)] * 3)  # fmt: skip
    x = numpy.array([1.0, 2.0])
    assert ag.grad(lambda z: np.sum(three(z)[1]))(x).tolist() == [2, 2]
    assert ag.grad(lambda z: np.sum(three(z)[0] * three(z)[2]))(x).tolist() == [6, 12]
    assert ag.grad(lambda z: (lambda a, b, c: np.sum(a + b * c + c))(*three(z)))(x).tolist() == [16, 28]
    assert heard == [(False, True, False), (False, False, True), (True, False, False), (True, True, True)]
    assert ag.jvp(lambda z: three(z)[1], (x,), (x,))[1].tolist() == [2, 4]


def test_an_output_of_one_tape_is_used_by_another() -> None:
    w = ag.Parameter(X)
    with ag.Tape() as first:
        values, vectors = np.linalg.eigh(w)
    with ag.Tape() as second:
        loss = np.sum(values**2) + np.sum(vectors[:, 0] ** 2)
    second.backward(loss)
    first.backward()
    assert w.grad is not None
    numpy.testing.assert_allclose(w.grad.numpy(), numpy.tril(4 * X, -1) + numpy.diag(2 * numpy.diag(X)), atol=1e-10)


def test_batches_of_several_outputs_may_be_sharded() -> None:
    with cc.Mesh(dp=1):
        x = cc.from_local(numpy.stack([X, X + 1]), {"dp": cc.Shard(0)}, requires_grad=True)
        with ag.Tape() as tape:
            u, s, vh = np.linalg.svd(x)
            y = cc.all_reduce(np.sum(s**2) + np.sum(np.linalg.eigh(x)[1][..., 0] ** 2), "dp", to=cc.I)
        assert u.layout == s.layout == vh.layout == {"dp": cc.Shard(0)} and s.global_shape == (2, 3)
        tape.backward(y)
        assert x.grad is not None and x.grad.layout == {"dp": cc.Shard(0)}
        numpy.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy(), atol=1e-9)
        with pytest.raises(cc.LayoutError, match=r"(?s)svd\(.*mixes along dimension 1"):
            np.linalg.svd(ag.tensor(numpy.stack([X, X]), {"dp": cc.Shard(1)}))


@pytest.mark.parametrize("record", [False, True])
def test_labels_of_several_outputs_are_proven(record: bool) -> None:
    """A rule that is not linear in the cotangents is refused where its operand is differentiated, and named."""

    def call(rule: Any) -> Any:
        two = Several("two (example)", "a N", lambda x, c: (x * c, -x), rule, saves="01",
                      outputs=lambda x, c: [(x.shape, x.dtype)] * 2)  # fmt: skip
        with cc.Mesh(dp=1):
            c = ag.tensor(X, {"dp": cc.V})
            with ag.Tape(), ag.Tape() as tape:
                x = tape.watch(ag.tensor(X, {"dp": cc.R}))
                y = np.sum(two(x, c)[0] - two(x, c)[1])
            (g,) = tape.backward([y], [ag.tensor(1.0, {"dp": cc.V})], wanted=[x], record=record)
            return g

    right = call((lambda cts, ys, x, c: sum(g * f for g, f in zip(cts, (c, -1), strict=True) if g is not None), None))
    assert not record or right.layout == {"dp": cc.P}
    numpy.testing.assert_allclose(raw(right), X + 1)
    with pytest.raises(cc.LayoutError, match=r"two \(example\)'s adjoint for x is not linear.*gives Replicated"):
        call((lambda cts, ys, x, c: np.sum(x) * x, None))


def test_a_recorded_sweep_of_several_outputs_under_a_mesh() -> None:
    a = numpy.stack([a @ a.T + 5 * numpy.eye(3) for a in RNG.standard_normal((2, 3, 3))])

    def second(x: Any) -> Any:
        def value(z: Any) -> Any:
            w, v = np.linalg.eigh(z)
            return np.sum(w**3) + np.sum(v[..., 0] ** 2 * w)

        return ag.grad(lambda z: np.sum(ag.grad(value)(z) ** 2))(x)

    with cc.Mesh(dp=1):
        found = second(ag.tensor(a, {"dp": cc.I}))
        assert found.layout == {"dp": cc.I}
    numpy.testing.assert_allclose(raw(found), second(a), rtol=1e-9)


def test_the_cotangent_of_cholesky_is_symmetric() -> None:
    """Of the logarithm of the determinant it is the inverse, on both sides of the diagonal."""
    a = X @ X.T
    found = ag.grad(lambda x: 2 * np.sum(np.log(np.diag(np.linalg.cholesky(x)))))(a)
    numpy.testing.assert_allclose(found, numpy.linalg.inv(a), atol=1e-12)
    other = ag.grad(lambda x: np.sum(X * np.linalg.cholesky(x)))(a)
    numpy.testing.assert_allclose(other, other.T, atol=1e-12)


def test_a_named_result_is_numpys() -> None:
    found = np.linalg.svd(ag.tensor(X))
    assert found._fields == ("U", "S", "Vh") and type(found) is type(numpy.linalg.svd(X))
    assert np.linalg.slogdet(ag.tensor(X)).sign.array == 1


def test_no_warning_of_numpys() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ag.grad(lambda x: np.sum(np.sinc(x)) + np.sum(np.std(x)) + np.linalg.norm(x))(numpy.zeros(3))


# -- errors of calls without a Tensor ----------------------------------------------------------------------------------
X1 = numpy.ones(4)
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "an axis that is not there": (lambda: np.sum(X1, axis=5), numpy.exceptions.AxisError),
    "the stack of a split of a number": (lambda: np.stack(np.array_split(numpy.array(1.0), 1)), IndexError),
    "a split of a number": (lambda: np.split(numpy.array(1.0), 1), IndexError),
    "the stack of no parts": (lambda: np.stack(np.unstack(ag.tensor(X1)[:0])), ValueError),
    "an unequal split": (lambda: np.split(X1, 3), ValueError),
    "a stack of other shapes": (lambda: np.stack([numpy.ones(2), numpy.ones(3)]), ValueError),
    "a singular matrix": (lambda: np.linalg.inv(numpy.zeros((2, 2))), numpy.linalg.LinAlgError),
    "a masked index": (lambda: np.argpartition(ag.tensor(X1), numpy.ma.masked), TypeError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_ringtapes_and_numpys(name: str) -> None:
    call, kind = REFUSED[name]
    with pytest.raises(ag.errors.RingtapeError, match="test_numpy.py") as error:
        call()
    assert isinstance(error.value, kind)


def test_an_error_of_a_function_of_the_program_stays_its_own() -> None:
    class Own(ValueError):
        pass

    def f(row: Any) -> Any:
        raise Own("mine")

    with pytest.raises(Own, match="^mine$"):
        np.apply_along_axis(f, 0, numpy.ones((2, 2)))


@pytest.mark.parametrize("make", [np.zeros_like, np.ones_like, np.empty_like])
@pytest.mark.parametrize("dtype", [object, Exception])
def test_no_tensor_of_objects_is_made(make: Any, dtype: Any) -> None:
    for x in (ag.tensor(1.5), ag.tensor([1.0, 2.0])):
        with pytest.raises(ag.errors.DtypeError, match="needed: a dtype of numbers"):
            make(x, dtype)
