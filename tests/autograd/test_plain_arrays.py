"""Arrays that are not plain are refused where they enter, with a fix; memory maps and plain subclasses go on.

The kinds are those of `tests/autograd/arrays/test_plain.py`. Here they meet the places where data enters: operations,
leaves, arguments of transforms, modules, losses, states, data sets. `tests/collectives/ops/test_dtypes.py` has the
collectives.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.nn.functional as F
import autograd.numpy as np
from autograd import data, nn, optim
from autograd.errors import DtypeError, NotDifferentiable
from autograd.extend import defvjp, primitive
from autograd.misc import flatten

Array = Any
B = numpy.array([[1.0, 2.0], [3.0, 4.0]])
MASK = numpy.array([[False, True], [False, False]])


class WithUnit(numpy.ndarray):
    """An array with NumPy's protocol, which keeps its class, as those with units do."""

    def __array_ufunc__(self, ufunc: Any, method: str, *xs: Any, **words: Any) -> Any:
        if not all(isinstance(x, numpy.ndarray | float | int) for x in xs):
            return NotImplemented
        return getattr(ufunc, method)(*(numpy.asarray(x) for x in xs), **words).view(WithUnit)


class Named(numpy.ndarray):
    """A subclass that adds a name."""

    def __array_finalize__(self, of: Any) -> None:
        self.label = getattr(of, "label", "")


class Variable:
    """An object that reads a masked array from a file, as a variable of netCDF4 does."""

    shape = (2, 2)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return numpy.ma.masked_array(B, MASK)


class Frame:
    """An object that gives a plain array, as a data frame does."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return B


KINDS: dict[str, Any] = {
    "masked": numpy.ma.masked_array(B, MASK),
    "masked, nothing hidden": numpy.ma.masked_array(B),
    "matrix": numpy.asmatrix(B),
    "units": B.view(WithUnit),
    "fields": numpy.zeros((2, 2), [("a", "f8"), ("b", "i4")]),
    "bytes": numpy.zeros((2, 2), "V4"),
    "objects": B.astype(object),
    "texts": B.astype(str),
    "dates": B.astype("M8[D]"),
}
INSIDE: dict[str, Any] = {
    "list of masked rows": list(numpy.ma.masked_array(B, MASK)),
    "masked number in a list": [[1.0, numpy.ma.masked_array(2.0, True)], [3.0, 4.0]],
    "object that gives a masked array": Variable(),
}
PLAIN: dict[str, Any] = {"subclass": B.view(Named), "recarray": B.view(numpy.recarray), "object": Frame()}


def recorded(f: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """A function of the data that calls `f` with a parameter on a tape."""

    def run(x: Any) -> Any:
        w = ag.Parameter(B, name="w")
        with ag.Tape() as tape:
            loss = np.sum(f(w, x))
        tape.backward(loss)
        return w.grad

    return run


OPERATORS = {name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "matmul", "mod", "gt", "eq")}
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    **{name: recorded(lambda w, x, f=f: f(w, x) * w) for name, f in OPERATORS.items()},
    "off the tape": lambda x: ag.Parameter(B) + x,
    "numpy.add": recorded(lambda w, x: numpy.add(w, x)),
    "where, condition": recorded(lambda w, x: np.where(x, w, 0.0)),
    "where, value": recorded(lambda w, x: np.where(w > 0, x, w)),
    "masked_fill": recorded(lambda w, x: w.masked_fill(x, 0.0)),
    "maximum": recorded(lambda w, x: np.maximum(w, x)),
    "einsum": recorded(lambda w, x: np.einsum("ij,jk", w, x)),
    "kron": recorded(lambda w, x: np.kron(w, x)),
    "outer": recorded(lambda w, x: np.outer(x, w)),
    "concatenate": recorded(lambda w, x: np.concatenate([x, w])),
    "stack": recorded(lambda w, x: np.stack([w, x])),
    "vstack": recorded(lambda w, x: np.vstack([w, x])),
    "clip": recorded(lambda w, x: np.clip(w, x, 9.0)),
    "average, weights": recorded(lambda w, x: np.average(w, weights=x)),
    "solve": recorded(lambda w, x: np.linalg.solve(w, x)),
    "copysign": recorded(lambda w, x: np.copysign(w, x)),
    "isclose": recorded(lambda w, x: np.isclose(w, x) * w),
    "allclose": recorded(lambda w, x: np.allclose(w, x) * w),
    "extract": recorded(lambda w, x: np.extract(x, w)),
    "diff, prepend": recorded(lambda w, x: np.diff(w, prepend=x)),
    "union1d": recorded(lambda w, x: np.union1d(w, x)),
}
OF_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "linear": recorded(lambda w, x: F.linear(x, w)),
    "attention, mask": recorded(lambda w, x: F.scaled_dot_product_attention(*[w[None, None]] * 3, attn_mask=x)),
    "Linear": nn.Linear(2, 2),
    "LayerNorm": nn.LayerNorm(2),
}
LEAVES: dict[str, Callable[[Any], Any]] = {
    "tensor": ag.tensor,
    "tensor, dtype": lambda x: ag.tensor(x, dtype="f4"),
    "Parameter": ag.Parameter,
    "constant": ag.constant,
    "jvp, tangent": lambda x: ag.jvp(lambda a: a * 2, (B,), (x,)),
    "vjp, cotangent": lambda x: ag.make_vjp(lambda a: a * 2)(B)[0](x),
    "an argument that is not differentiated": lambda x: ag.grad(lambda a, b: np.sum(a * b))(B, x),
    "data of a parameter": lambda x: setattr(ag.Parameter(B), "data", x),
    "grad of a parameter": lambda x: setattr(ag.Parameter(B), "grad", x),
    "a buffer": lambda x: nn.Module().register_buffer("b", x),
    "mse_loss": recorded(lambda w, x: F.mse_loss(w, x)),
    "l1_loss": recorded(lambda w, x: F.l1_loss(w, x)),
    "load_state_dict": lambda x: nn.Linear(2, 2).load_state_dict({"weight": x}, strict=False),
    "state of an optimizer": lambda x: _loaded(x),
    "flatten": flatten,
}
ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "grad": ag.grad(lambda a: np.sum(a * 2)),
    "grad of a dictionary": lambda x: ag.grad(lambda a: np.sum(a["x"] * 2))({"x": x}),
    "elementwise_grad": ag.elementwise_grad(lambda a: a * 2),
    "jacobian": ag.jacobian(lambda a: a * 2),
    "jvp": lambda x: ag.jvp(lambda a: a * 2, (x,), (B,)),
    "checkpoint": lambda x: ag.grad(lambda a: np.sum(ag.checkpoint(lambda b: b * x)(a)))(B),
    "a rule of the program": lambda x: _by_rule(x),
    "DataLoader": lambda x: next(iter(data.DataLoader(data.TensorDataset(x), batch_size=2))),
    "collate_fn": lambda x: next(iter(data.DataLoader([1, 2], batch_size=2, collate_fn=lambda _: x))),
}
CLASSES: dict[str, Callable[[Any], Any]] = {  # they take texts and objects, of which a program may make numbers
    "TensorDataset": data.TensorDataset,
    "default_collate": lambda x: data.default_collate([x, x]),
    "default_collate of pairs": lambda x: data.default_collate([(x, 1), (x, 2)]),
    "BatchNorm1d": nn.BatchNorm1d(2),
    "relu, without a Tensor": F.relu,
}


def _loaded(x: Any) -> None:
    w = ag.Parameter(B)
    optimizer = optim.SGD([w], lr=0.1, momentum=0.9)
    w.grad = B
    optimizer.step()
    state = optimizer.state_dict()
    optimizer.load_state_dict({**state, "velocity": [x]})


def _by_rule(x: Any) -> Any:
    twice = primitive(lambda a: a * 2)
    defvjp(twice, lambda ans, a: lambda g: x)
    return ag.grad(lambda a: np.sum(twice(a)))(B)


PLACES = OPERATIONS | OF_ARRAYS | LEAVES | ARGUMENTS
TABLE = [(kind, place) for kind in KINDS for place in PLACES]
TABLE += [(kind, place) for kind in INSIDE for place in OPERATIONS | LEAVES if place != "state of an optimizer"]
TABLE += [(kind, place) for kind in ("masked", "matrix", "units", "list of masked rows") for place in CLASSES]


@pytest.mark.parametrize("place", PLACES | CLASSES)
def test_each_kind_is_refused_at_each_place(place: str) -> None:
    silent = []
    for kind in [kind for kind, at in TABLE if at == place]:
        try:
            (PLACES | CLASSES)[place]({**KINDS, **INSIDE}[kind])
            silent.append(kind)
        except DtypeError as error:
            assert "\n  fix: " in str(error) and str(error).count("\n  at ") == 1, error
            assert "given; needed: " in str(error), f"{kind}: {error}"
    assert not silent


def test_the_table_is_large() -> None:
    assert len(TABLE) > 500


@pytest.mark.parametrize("place", ["add", "mse_loss", "tensor", "jacobian", "load_state_dict", "TensorDataset"])
@pytest.mark.parametrize("kind", PLAIN)
def test_plain_subclasses_go_on(kind: str, place: str) -> None:
    (PLACES | CLASSES)[place](PLAIN[kind])


def test_a_memory_map_goes_on(tmp_path: Any) -> None:
    x = numpy.memmap(tmp_path / "x", "f8", "w+", shape=(2, 2))
    x[...] = B
    for place in ("add", "matmul", "where, value", "mse_loss", "tensor", "Parameter", "grad", "DataLoader", "a buffer"):
        PLACES[place](x)
    w = ag.Parameter(x)
    with ag.Tape() as tape:
        loss = ((w * x - 1.0) ** 2).sum()
    tape.backward(loss)
    assert w.grad is not None
    numpy.testing.assert_array_equal(w.grad.numpy(), 2 * B * (B * B - 1))


def test_what_a_tape_has_saved_is_plain() -> None:
    w = ag.tensor(B.copy(), requires_grad=True)
    with ag.Tape() as tape:
        y = w * w
        with ag.no_grad():
            saved = w.data
        loss = (y * saved).sum()
    tape.backward(loss)
    assert type(saved) is not numpy.ndarray
    ag.tensor(saved), ag.Parameter(saved)


# -- masked arrays on the left, and the way that the errors name -------------------------------------------------------
REFLECTED = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.gt, operator.eq,
             lambda x, w: numpy.ma.where(x > 1, w, 0.0), lambda x, w: numpy.ma.masked_array(w, MASK),
             lambda x, w: numpy.ma.multiply(w, x)]  # fmt: skip


@pytest.mark.parametrize("f", REFLECTED)
def test_functions_of_masked_arrays_do_not_take_the_values_of_a_tensor(f: Any) -> None:
    with pytest.raises(NotDifferentiable, match="numpy.ma would use its values alone.*\n  fix: mask, x = numpy.ma.g"):
        recorded(lambda w, x: f(x, w))(KINDS["masked"])


RNG = numpy.random.default_rng(0)
ROWS, HIDDEN, TARGETS, W = RNG.normal(size=(6, 2)), RNG.random(size=(6, 2)) < 0.4, RNG.normal(size=(6, 2)), B / 3
LOSSES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "squares": (lambda r: r**2, False),
    "a mean of squares": (lambda r: r**2, True),
    "absolute values": (np.abs, False),
    "exponentials": (np.exp, True),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("swapped", [False, True])
def test_the_fix_of_a_masked_array_gives_the_gradient_of_what_counts(name: str, swapped: bool) -> None:
    terms_of, is_mean = LOSSES[name]
    x: Any = numpy.ma.masked_array(TARGETS, HIDDEN)
    given: dict[str, Any] = {"numpy": numpy, "x": x}
    with pytest.raises((DtypeError, NotDifferentiable), match="fix: ") as caught:
        ag.grad(lambda w: np.sum(terms_of(x - ROWS @ w if swapped else ROWS @ w - x)))(W)
    exec(str(caught.value).partition("fix: ")[2].partition(";")[0], given)
    mask, x = given["mask"], given["x"]

    def loss(w: Any) -> Any:
        total = np.sum(numpy.where(mask, 0, terms_of(x - ROWS @ w if swapped else ROWS @ w - x)))
        return total / (~mask).sum() if is_mean else total

    def of_visible(w: Any) -> Any:
        residuals = (TARGETS - ROWS @ w if swapped else ROWS @ w - TARGETS)[~HIDDEN]
        terms = terms_of(residuals)
        return np.mean(terms) if is_mean else np.sum(terms)

    assert loss(W) == pytest.approx(of_visible(W), rel=1e-14)
    numpy.testing.assert_allclose(ag.grad(loss)(W), ag.grad(of_visible)(W), rtol=1e-12)


def test_the_fix_of_masked_labels_gives_the_loss_of_the_others() -> None:
    labels = numpy.ma.masked_array([0, 1, 1, 0], [0, 1, 0, 0])
    logits = RNG.normal(size=(4, 2))
    with pytest.raises(DtypeError, match=r"or:  x.filled\(-100\)"):
        ag.grad(lambda z: F.cross_entropy(z, labels))(logits)
    found = ag.grad(lambda z: F.cross_entropy(z, labels.filled(-100)))(logits)
    rest = ag.grad(lambda z: F.cross_entropy(z, numpy.array([0, 1, 0])))(logits[[0, 2, 3]])
    numpy.testing.assert_allclose(found[[0, 2, 3]], rest, rtol=1e-12)
    assert not found[1].any()


@pytest.mark.parametrize("index", [numpy.ma.masked_array([0, 1], [0, 1]), numpy.ma.masked_array([True, False], [0, 1])])
def test_masked_indices(index: Any) -> None:
    for f in (lambda w: w[index], lambda w: w[:, index], lambda w: np.take(w, index, 0), lambda w: w[list(index), 0],
              lambda w: np.compress(index, w, 0)):  # fmt: skip
        with pytest.raises(DtypeError, match="a masked array was given.*\n  fix: "):
            recorded(lambda w, _, f=f: f(w))(None)


def test_masked_numbers() -> None:
    for x in (numpy.ma.masked, numpy.ma.masked_array(2.0, True)):
        for place in ("add", "mul", "maximum", "outer", "tensor", "Parameter", "constant", "off the tape", "isclose"):
            with pytest.raises(DtypeError, match="a masked array was given.*\n  fix: "):
                PLACES[place](x)
