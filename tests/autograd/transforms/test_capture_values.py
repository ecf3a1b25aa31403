"""Checks and decisions of the library that depend on values: a replay makes them again, as the step would.

Each check is a function of a parameter and of values that are legal or not. It runs before the optimizer's step, where
a replay can go back, and after it, where it cannot; the error and the state are those of the step.
"""

from __future__ import annotations

import ast
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, ops, optim, random
from autograd.compiler.build import is_available
from autograd.engine.pytree import flatten
from autograd.errors import CaptureError, RingtapeError
from autograd.nn import functional as F
from autograd.transforms import captured_step, guards

from .test_capture import bits
from .test_capture_guards import Training, data

Check = Callable[[Any, Any], Any]
COUNTS = numpy.array([1, 0, 3])
LABELS = numpy.array([0, 2, 1, 3])
WEIGHT = numpy.array([1.0, 2.0, 0.5, 1.0], "float32")

CHECKS: dict[str, tuple[Check, Any, list[Any]]] = {
    "embedding": (lambda p, i: nn.embedding(i, p), LABELS, [LABELS - 2, LABELS + 1]),
    "embedding with a row for padding": (
        lambda p, i: nn.embedding(i, p, padding_idx=1), LABELS, [LABELS - 1, LABELS + 1]),
    "embedding of a Tensor": (lambda p, i: nn.embedding(ag.tensor(i), p), LABELS, [LABELS - 2, LABELS + 1]),
    "embedding of computed indices": (
        lambda p, i: nn.embedding(ag.tensor(i) * 1, p), LABELS, [LABELS - 2, LABELS + 1]),
    "one_hot": (lambda p, i: p * F.one_hot(i, 4), LABELS, [LABELS - 1, LABELS + 1]),
    "one_hot of a Tensor": (lambda p, i: p * F.one_hot(ag.tensor(i), 4), LABELS, [LABELS - 1, LABELS + 1]),
    "one_hot without the number of classes": (lambda p, i: (p * F.one_hot(i)), LABELS, [LABELS - 1]),
    "nll_loss": (lambda p, i: nn.nll_loss(p, i), LABELS, [LABELS - 1, LABELS + 1]),
    "nll_loss with weights": (lambda p, i: nn.nll_loss(p, i, WEIGHT), LABELS, [LABELS - 1, LABELS + 1]),
    "cross_entropy": (lambda p, i: nn.cross_entropy(p, i), LABELS, [LABELS - 1, LABELS + 1]),
    "cross_entropy with smoothing": (
        lambda p, i: nn.cross_entropy(p, i, label_smoothing=0.1), LABELS, [LABELS - 1, LABELS + 1]),
    "cross_entropy with weights": (
        lambda p, i: nn.cross_entropy(p, i, weight=WEIGHT), LABELS, [LABELS - 1, LABELS + 1]),
    "grouped_linear": (lambda p, n: ops.grouped_linear(p, numpy.ones((3, 4, 2), "float32"), None, n), COUNTS,
                       [COUNTS + 1, COUNTS[::-1] * 0, numpy.array([2, -1, 3])]),
    "an index": (lambda p, i: p[i], LABELS, [LABELS + 1]),
    "take": (lambda p, i: np.take(p, i, axis=0), LABELS, [LABELS + 1]),
    "a Cholesky factor": (lambda p, a: np.linalg.cholesky(ag.tensor(a)), numpy.eye(3), [-numpy.eye(3)]),
    "an inverse": (lambda p, a: np.linalg.inv(ag.tensor(a)), numpy.eye(3), [numpy.zeros((3, 3))]),
    "a solution": (lambda p, a: np.linalg.solve(a, p[:3]), numpy.eye(3), [numpy.zeros((3, 3))]),
    "a uniform draw": (lambda p, high: p * random.uniform(random.Key(0), (4, 4), high=high), numpy.array(2.0),
                       [numpy.array(-1.0), numpy.array(numpy.inf)]),
    "a draw of booleans": (lambda p, q: p * random.bernoulli(random.Key(0), (4, 4), q), numpy.array(0.5),
                           [numpy.array(1.5), numpy.array(numpy.nan)]),
}  # fmt: skip


def outcome(check: Check, good: Any, bad: Any, is_late: bool, wrap: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The error of a call with illegal values after calls with legal ones, and the state that it leaves."""
    p = ag.Parameter(numpy.linspace(-1, 1, 16, dtype="float32").reshape(4, 4), name="p")
    optimizer = optim.SGD([p], 0.1, 0.9)

    def step(x: Any, values: Any) -> Any:
        optimizer.zero_grad()
        found = None if is_late else check(p, values)
        with ag.Tape() as tape:
            loss = (ag.tensor(x) @ p).mean()
        tape.backward(loss)
        optimizer.step()
        return loss, check(p, values) if is_late else found

    do = wrap(step)
    for seed in range(6):
        do(data(seed)[0], good)
    assert getattr(do, "replays", 2) == 2
    error: Any = None
    try:
        do(data(6)[0], bad)
    except RingtapeError as raised:
        error = type(raised), raised.reason.removesuffix(", in a replay"), str(raised).rpartition("at ")[2]
    last = bits(do(data(7)[0], good))
    return error, bits(p), bits(p.grad), bits(optimizer.velocity), last


@pytest.mark.parametrize("is_late", [False, True], ids=["before a change", "after a change"])
@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.filterwarnings("ignore")
def test_a_replay_makes_the_checks_of_the_step(name: str, is_late: bool) -> None:
    check, good, bads = CHECKS[name]
    for bad in bads:
        bad = bad.astype(good.dtype)
        expected = outcome(check, good, bad, is_late, lambda step: step)
        assert expected[0] is not None, "the step itself makes no such check"
        found = outcome(check, good, bad, is_late, ag.capture)
        assert found[0] is not None, "the replay is silent"
        assert found[0][0] is expected[0][0] and found[0][2] == expected[0][2]
        assert expected[0][1].endswith(found[0][1])
        assert found[1:] == expected[1:]


# -- where the library looks at values ---------------------------------------------------------------------------------
ROOMS = ("autograd/ops", "autograd/nn", "autograd/random", "autograd/optim", "autograd/scipy", "autograd/numpy",
         "autograd/transforms", "parallel/tensor", "parallel/context")  # fmt: skip
REDUCES = frozenset(("any", "all", "item", "tolist", "max", "min", "sum", "argmax", "argmin", "isnan", "isfinite"))
CALLED_AGAIN = {  # by `checked` or `decided`, so that a replay calls them again
    "autograd/nn/functional.py": {"_number_of_classes", "_require_classes"},
    "autograd/nn/losses.py": {"_occurs", "_require_labels"},
    "autograd/ops/nn/cross_entropy.py": {"_check_labels", "_may_ignore"},
    "autograd/ops/nn/embedding.py": {"require_range"},
    "autograd/ops/nn/grouped.py": {"_require_counts"},
    "autograd/ops/norms.py": {"_have_digits"},
    "autograd/ops/sorting.py": {"_has_nan_at_end"},
    "parallel/tensor/vocabulary.py": {"_occurs"},
}
INSIDE_OF_A_CALL = {  # parts of the functions of operations, or of the step of an optimizer, which are calls as a whole
    "autograd/ops/nn/embedding.py": {"_add_own", "_take_own"},
    "autograd/ops/nn/pooling.py": {"_first_maxima"},
    "autograd/ops/norms.py": {"_norm"},
    "autograd/ops/ufuncs.py": {"_bessel"},
    "autograd/optim/mixed_precision.py": {"_refuse_infinite", "step"},
    "autograd/optim/norms.py": {"_power"},
}
REFUSED_IF_OTHER = {  # numbers that become constants of the record, which the proof compares
    "autograd/ops/statistics.py": {"_has_zero"},  # of arrays on a device
    "autograd/scipy/stats/multivariate_normal.py": {"_pseudo_inverse"},
}
OF_CAPTURE = frozenset(("captured_step", "recorder", "guards", "reach", "memory", "replay", "lowering", "table"))


def looks_at_values(tree: ast.AST) -> bool:
    """Whether code reduces an array to a truth or a number of Python."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            tested = [node.test]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("bool", "int", "float"):
            tested = node.args
        elif isinstance(node, ast.BoolOp):
            tested = node.values
        else:
            tested = [node.operand] if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else []
        for x in (x for test in tested for x in ast.walk(test)):
            if isinstance(x, ast.Call) and isinstance(x.func, ast.Attribute) and x.func.attr in REDUCES:
                is_of_numbers = isinstance(x.func.value, ast.Name) and x.func.value.id == "math"
                if not is_of_numbers:
                    return True
    return False


def test_the_library_looks_at_values_in_calls_that_are_repeated() -> None:
    """A new function that decides on values, or checks them, belongs to one of the tables."""
    root = Path(__file__).parents[3]
    found: dict[str, set[str]] = {}
    for path in (path for room in ROOMS for path in sorted((root / room).rglob("*.py"))):
        if path.stem not in OF_CAPTURE:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and looks_at_values(node):
                    found.setdefault(path.relative_to(root).as_posix(), set()).add(node.name)
    known: dict[str, set[str]] = {}
    for table in (CALLED_AGAIN, INSIDE_OF_A_CALL, REFUSED_IF_OTHER):
        for file, names in table.items():
            known[file] = known.get(file, set()) | names
    assert found == known


@pytest.mark.parametrize("text", [
    "if x.max() > 3: f()", "y = bool((x < 0).any())", "n = int(x.sum())", "y = 1 if np.isnan(x).any() else 2",
    "y = a and x.all()", "y = not np.any(x)",
])  # fmt: skip
def test_a_look_at_values_is_seen(text: str) -> None:
    assert looks_at_values(ast.parse(text))
    assert not looks_at_values(ast.parse("y = x.max(); z = math.isfinite(a) and len(b) > 3"))


# -- decisions ---------------------------------------------------------------------------------------------------------
NAN = numpy.array([[1.0, numpy.nan, 2.0], [3.0, 4.0, 5.0]])
PLAIN = numpy.array([[1.0, 0.5, 2.0], [3.0, 4.0, 5.0]])


def _gradient(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return ag.value_and_grad(lambda x: f(x).sum())


DECISIONS: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "a median with NaN": (_gradient(lambda x: np.median(x, axis=1)), PLAIN, NAN),
    "a quantile with NaN": (_gradient(lambda x: np.quantile(x, 0.3, axis=1)), PLAIN, NAN),
    "a percentile with NaN": (_gradient(lambda x: np.percentile(x, 30)), PLAIN, NAN),
    "a second derivative of a product with zeros": (
        _gradient(lambda x: ag.grad(np.prod)(x) ** 2), PLAIN, PLAIN * (PLAIN != 0.5)),
    "a second derivative of a determinant that is nearly zero": (
        _gradient(lambda x: ag.grad(lambda y: np.linalg.det(y[:, :2]))(x) ** 2), PLAIN,
        numpy.array([[1.0, 1.0, 0.0], [1.0, 1.0 + 1e-13, 0.0]])),
    "a second derivative of a maximum with ties": (
        _gradient(lambda x: ag.grad(lambda y: (np.max(y, 1) ** 2).sum())(x) ** 2), PLAIN, numpy.ones((2, 3))),
    "classes of one_hot": (lambda x: F.one_hot(x.astype(int)), PLAIN, PLAIN + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", DECISIONS)
@pytest.mark.filterwarnings("ignore")
def test_a_replay_makes_the_decisions_of_the_step(name: str) -> None:
    step, first, then = DECISIONS[name]
    do = ag.capture(lambda x: step(ag.tensor(x)))
    for i in range(12):
        x = then if i in (7, 9) else first * (1 if "one_hot" in name else 1 + i / 8)
        expected = [bits(y) for y in flatten(step(ag.tensor(x)))[0]]
        assert [bits(y) for y in flatten(do(x))[0]] == expected, i
    assert do.replays >= 5


# -- programs that were refused though they are natural ----------------------------------------------------------------
W = ag.Parameter(numpy.random.default_rng(0).standard_normal((4, 4)))
KEY = random.Key(0, "a")
NORM = nn.BatchNorm1d(4, dtype="float64").eval()


def trained(f: Callable[..., Any]) -> Callable[..., Any]:
    def step(*args: Any) -> Any:
        with ag.Tape() as tape:
            loss = f(*args)
        (g,) = tape.backward(loss, wanted=[W]) or ()
        return loss, ag.tensor(g)

    return step


def f(x: Any) -> Any:
    return (np.tanh(x @ W) ** 2).sum()


def u(x: Any) -> Any:
    return (np.tanh(x[:, :1] @ W[:1]) @ W[:, 1:2]).sum()


def _x(i: int) -> Any:
    return numpy.random.default_rng(i).standard_normal((6, 4))


def _y(i: int) -> Any:
    return numpy.random.default_rng(i).integers(0, 4, 6)


def _t(i: int) -> Any:
    return ag.tensor(_x(i))


NATURAL: dict[str, tuple[Callable[..., Any], tuple[Callable[[int], Any], ...]]] = {
    "value_and_grad of arrays": (ag.value_and_grad(f), (_x,)),
    "a gradient of two arrays": (ag.grad(lambda a, b: f(a) + (b**2).sum(), (0, 1)), (_x, _x)),
    "one_hot": (trained(lambda x, y: ((ag.tensor(x) @ W) * F.one_hot(y, 4)).sum()), (_x, _y)),
    "nll_loss": (trained(lambda x, y: nn.nll_loss(nn.log_softmax(ag.tensor(x) @ W, 1), y)), (_x, _y)),
    "cross_entropy with weights": (
        trained(lambda x, y: nn.cross_entropy(ag.tensor(x) @ W, y, weight=WEIGHT, label_smoothing=0.1)), (_x, _y)),
    "an embedding with padding": (trained(lambda y: (nn.embedding(y, W, padding_idx=0) ** 2).sum()), (_y,)),
    "a weighted average": (trained(lambda x, w: np.average(ag.tensor(x) @ W, weights=w)), (_x, lambda i: _x(i) ** 2)),
    "a weighted average along an axis": (
        trained(lambda x, w: np.average(ag.tensor(x) @ W, 0, w).sum()), (_x, lambda i: _x(i)[:, 0] ** 2)),
    "an interpolation": (
        trained(lambda x: np.interp(ag.tensor(x) @ W, numpy.arange(5.0), numpy.arange(5.0) ** 2).sum()), (_x,)),
    "a periodic interpolation": (
        trained(lambda x, p: np.interp(ag.tensor(x) @ W, p, numpy.arange(5.0) ** 2, period=3.0).sum()),
        (_x, lambda i: numpy.random.default_rng(i).uniform(0, 3, 5))),
    "a key of dropout": (trained(lambda x, k: nn.dropout(ag.tensor(x) @ W, 0.5, key=k).sum()), (_x, KEY.at)),
    "keys that are made of a key": (
        trained(lambda x, k: (nn.dropout(ag.tensor(x) @ W, 0.5, key=k.fold("b").at(3)) * random.normal(k, 4)).sum()),
        (_x, KEY.at)),
    "the number of a step in a key": (
        trained(lambda x, n: nn.dropout(ag.tensor(x) @ W, 0.5, key=KEY.at(n)).sum()), (_x, numpy.int64)),
    "a draw of each kind": (
        lambda x, k: [ag.tensor(x) * y for y in (
            random.uniform(k, (6, 4), low=-1), random.normal(k, (6, 4)), random.truncated_normal(k, (6, 4)),
            random.integers(k, (6, 4), 0, 9), random.bernoulli(k, (6, 4), 0.3), random.permutation(k, 4))],
        (_x, KEY.at)),
    "one key as two arguments": (
        lambda x, k, j: nn.dropout(ag.tensor(x), 0.5, key=k) * random.normal(j, (6, 4)),
        (_x, lambda i: KEY, lambda i: KEY)),
    "an argument that NumPy casts": (trained(lambda x: (ag.tensor(x.astype("float32")) @ W).sum()), (_x,)),
    "an argument that NumPy copies": (trained(lambda x: (ag.tensor(numpy.array(x)) @ W).sum()), (_x,)),
    "a mask that NumPy casts": (
        trained(lambda x, m: ((ag.tensor(x) @ W).sum(1) * numpy.asarray(m, "float32")).sum()),
        (_x, lambda i: _y(i) > (1 if i > 4 else -1))),
    "a Jacobian-vector product": (lambda x: ag.jvp(f, (x,), (x,)), (_t,)),
    "a Jacobian-vector product of arrays": (lambda x: ag.jvp(f, (x,), (x,)), (_x,)),
    "a derivative": (lambda x: ag.deriv(lambda s: (np.tanh(x) * s).sum())(2.0), (_t,)),
    "a Hessian-vector product": (lambda x: ag.hessian_vector_product(f)(x, x), (_t,)),
    "forward over reverse": (lambda x: ag.jvp(ag.grad(f), (x,), (x,)), (_t,)),
    "reverse over forward": (lambda x: ag.grad(lambda y: ag.jvp(f, (y,), (x,))[1])(x), (_t,)),
    "forward over forward": (lambda x: ag.jvp(lambda y: ag.jvp(f, (y,), (x,))[1], (x,), (x,)), (_t,)),
    "a Jacobian": (lambda x: ag.jacobian(lambda y: np.tanh(y @ W).sum(1))(x), (_t,)),
    "a Hessian": (lambda x: ag.hessian(f)(x[:2]), (_t,)),
    "a vector-Jacobian product": (lambda x: ag.vjp(lambda y: np.tanh(y @ W), x)[1](x), (_t,)),
    "tangents of layers": (
        lambda x: ag.jvp(lambda y: nn.layer_norm(nn.gelu(y), (4,)).std() + nn.softmax(y).max(), (x,), (x,)), (_t,)),
    "tangents of decompositions": (
        lambda x: ag.jvp(lambda y: np.linalg.svd(y, full_matrices=False)[1].sum() + np.linalg.slogdet(y[:4])[1],
                         (x,), (x,)), (_t,)),
    "tangents of a loss": (
        lambda x, y: ag.jvp(lambda z: nn.cross_entropy(z, y, reduction="sum"), (x,), (x,)), (_t, _y)),
    "a penalty on a gradient": (
        trained(lambda x: ((np.sqrt((ag.grad(f)(ag.tensor(x)) ** 2).sum(1)) - 1) ** 2).mean()), (_x,)),
    "a differential equation": (
        trained(lambda x: ((ag.grad(lambda y: ag.grad(u)(y).sum())(ag.tensor(x)) - np.sin(x)) ** 2).mean()), (_x,)),
    "a differential equation, forward over reverse": (
        trained(lambda x: ((ag.jvp(ag.grad(u), (ag.tensor(x),), (numpy.ones_like(x),))[1]) ** 2).mean()), (_x,)),
    "layers of arrays": (
        lambda x: (nn.leaky_relu(x), nn.BatchNorm1d(4, affine=False, track_running_stats=False)(x), NORM(x)), (_x,)),
    "losses of arrays": (
        lambda x, y, z: [loss(x, y) for loss in (nn.mse_loss, nn.l1_loss, nn.smooth_l1_loss)]
        + [nn.binary_cross_entropy_with_logits(x, y, pos_weight=WEIGHT), nn.nll_loss(x, z, weight=WEIGHT)],
        (_x, _x, _y)),
    "targets of an argument with weights": (
        trained(lambda x, y: nn.binary_cross_entropy_with_logits(ag.tensor(x) @ W, y, pos_weight=WEIGHT)), (_x, _x)),
    "an update of arrays by operations": (
        lambda p, x: np.subtract(p, np.multiply(0.1, ag.grad(lambda q: (np.tanh(x @ q) ** 2).sum())(p))),
        (lambda i: _x(i)[:4], _x)),
    "a count that is always the same": (
        lambda x, n: np.repeat(ag.tensor(x), n, axis=0), (_x, lambda i: numpy.roll([1, 3, 2, 2, 2, 2], i))),
}  # fmt: skip


@pytest.mark.parametrize("name", NATURAL)
def test_a_natural_program_is_captured(name: str) -> None:
    step, draw = NATURAL[name]
    do = ag.capture(step)
    for i in range(12):
        expected, found = (flatten(run(*(each(i) for each in draw)))[0] for run in (step, do))
        assert [bits(x) for x in found] == [bits(x) for x in expected], i
    assert do.replays == 8


DROPS_NOTHING = nn.Dropout(0.0)
CELLS = [kind(4, 4, dtype="float64") for kind in (nn.RNNCell, nn.GRUCell, nn.LSTMCell)]
TRACED: dict[str, tuple[Callable[..., Any], tuple[Callable[[int], Any], ...]]] = {
    "a mean along indices": (
        trained(lambda x, y: -np.take_along_axis(nn.log_softmax(ag.tensor(x) @ W), y[:, None], 1).mean()), (_x, _y)),
    "a mean at pairs of indices": (
        trained(lambda x, y: -nn.log_softmax(ag.tensor(x) @ W)[numpy.arange(6), ag.tensor(y)].mean()), (_x, _y)),
    "a mean of sorted values": (trained(lambda x: np.sort(ag.tensor(x) @ W, 1)[:, :2].mean()), (_x,)),
    "a quantile": (trained(lambda x: np.quantile(ag.tensor(x) @ W, 0.3)), (_x,)),
    "a median": (trained(lambda x: np.median(ag.tensor(x) @ W)), (_x,)),
    "products of float16": (
        trained(lambda x: (ag.tensor(x).astype("float16") @ W.astype("float16")).astype("float32").mean()), (_x,)),
    "rounded parameters": (
        trained(lambda x: (ag.tensor(x) @ (W + ag.stop_gradient(np.round(W * 8) / 8 - W))).sum()), (_x,)),
    "numbers in the place of NaN": (
        trained(lambda x: (np.nan_to_num(ag.tensor(x), nan=1.0, posinf=2.0) @ W).sum()),
        (lambda i: numpy.where(_x(i) > 1, [numpy.nan, numpy.inf, -numpy.inf, 3], _x(i)),)),
    "a layer that drops nothing": (trained(lambda x: DROPS_NOTHING(ag.tensor(x) @ W).sum()), (_x,)),
    "a rate of right labels": (
        trained(lambda x, y: (np.argmax(ag.tensor(x) @ W, 1) == y).mean() * (W**2).sum()), (_x, _y)),
    "deviations": (
        trained(lambda x: ((ag.tensor(x) - x.mean(0)) / np.std(ag.tensor(x), 0) @ W).var(1, ddof=1).sum()), (_t,)),
    "a determinant": (trained(lambda x: np.linalg.det(ag.tensor(x).T @ (x @ W))), (_x,)),
    "an embedding at every second label": (
        trained(lambda y: (nn.embedding(ag.tensor(y)[::2], W) ** 2).sum()), (_y,)),
    "an embedding at labels of 32 bits": (
        trained(lambda y: (nn.embedding(ag.tensor(y), W) ** 2).sum()), (lambda i: _y(i).astype("int32"),)),
    **{f"zeros as the first state of {type(cell).__name__}": (
        trained(lambda x, cell=cell: (np.stack([*cell(ag.tensor(x) @ W)]) ** 2).sum()), (_x,)) for cell in CELLS},
}  # fmt: skip


@pytest.mark.skipif(not is_available(), reason="without loops, rows are sorted by their places")
@pytest.mark.parametrize("name", TRACED)
def test_nothing_of_it_stays_a_call_of_python(name: str) -> None:
    step, draw = TRACED[name]
    do = ag.capture(step)
    for i in range(12):
        expected, found = (flatten(run(*(each(i) for each in draw)))[0] for run in (step, do))
        assert [bits(x) for x in found] == [bits(x) for x in expected], i
    unlike = ("stays a call of Python", "one by one", "dtype f2")
    whys = [line for line in str(do).splitlines() if any(text in line for text in unlike)]
    assert do.replays == 8 and not whys, str(do)


# -- ways to remove gradients, and to keep them ------------------------------------------------------------------------
REMOVED: dict[str, Callable[[Any, Any], Any]] = {
    "by the optimizer": lambda model, optimizer: optimizer.zero_grad(),
    "by the model": lambda model, optimizer: model.zero_grad(),
    "by each parameter": lambda model, optimizer: [p.zero_grad() for p in model.parameters()],
    "by assignment": lambda model, optimizer: [setattr(p, "grad", None) for p in model.parameters()],
    "of one parameter": lambda model, optimizer: model[0].bias.zero_grad(),
    "of none": lambda model, optimizer: None,
}


@pytest.mark.skipif(not is_available(), reason="llvmlite is missing, or RINGTAPE_COMPILED=0")
@pytest.mark.parametrize("is_last", [False, True], ids=["a sum", "a step"])
@pytest.mark.parametrize("name", REMOVED)
@pytest.mark.filterwarnings("ignore")
def test_a_step_is_compiled_however_gradients_are_removed(name: str, is_last: bool) -> None:
    """Where they are not, calls of Python add to those of earlier calls, and the rest is compiled."""

    def run(wrap: Callable[[Any], Any]) -> tuple[list[Any], Any]:
        random.seed(0)
        model = nn.Sequential(nn.Linear(4, 5, dtype="float64"), nn.Tanh(), nn.Linear(5, 3, dtype="float64"))
        optimizer = optim.Adam(model.parameters(), 0.1)

        def step(x: Any) -> Any:
            REMOVED[name](model, optimizer)
            with ag.Tape() as tape:
                loss = model(ag.tensor(x)).sum()  # the gradient of the last bias is a constant
            tape.backward(loss)
            if is_last:
                optimizer.step()
            return loss

        do, found = wrap(step), []
        for i in range(14):
            if i in (5, 9):  # there is no gradient of an earlier call
                optimizer.zero_grad()
            found.append(bits([do(_x(i)), *model.parameters(), *(p.grad for p in model.parameters())]))
        return found, do

    expected, _ = run(lambda step: step)
    found, do = run(ag.capture)
    assert found == expected
    assert do.replays == 10
    assert do._last.program is not None, do._last.why
    adds = [why for why in do._last.program.step.whys.values() if why.startswith("gradient of")]
    assert len(adds) == {"of none": 4, "of one parameter": 3}.get(name, 0)


DRAWS: dict[str, Callable[..., Any]] = {
    "normal": lambda k, x: random.normal(k, x.shape, dtype="float32"),
    "uniform": lambda k, x: random.uniform(k, ag.tensor(x), low=-1, dtype="float32"),
    "truncated_normal": lambda k, x: random.truncated_normal(k, x.shape, dtype="float32"),
    "bernoulli": lambda k, x: random.bernoulli(k, x.shape, 0.3),
    "integers": lambda k, x: random.integers(k, x.shape, -5, 9),
    "dropout": lambda k, x: nn.dropout(ag.tensor(x), 0.3, key=k),
}


@pytest.mark.skipif(not is_available(), reason="llvmlite is missing, or RINGTAPE_COMPILED=0")
@pytest.mark.parametrize("name", DRAWS)
def test_only_the_words_of_a_draw_are_made_by_python(name: str) -> None:
    """The numbers are made of them in the loops that use them."""

    def step(x: Any, p: Any) -> Any:
        key = random.next_key("noise")
        with ag.Tape() as tape:
            loss = (ag.tensor(x) * p * DRAWS[name](key, x) + DRAWS[name](KEY, x)).sum()
        return loss, tape.backward(loss, wanted=[p])[0]

    do, p = ag.capture(step), ag.Parameter(numpy.ones(4, "float32"))
    for i in range(20):
        x = numpy.random.default_rng(i).standard_normal((6, 4)).astype("float32")
        before = random.get_state()
        needed = flatten(step(x, p))[0]
        random.set_state(before)
        assert [bits(y) for y in flatten(do(x, p))[0]] == [bits(y) for y in needed], i
    assert do.replays == 16
    whys = do._last.program.step.whys.values()  # type: ignore[union-attr]
    assert {why.split(" at ")[0] for why in whys} == {"next_key", "words of a draw"}


# -- checkpoints -------------------------------------------------------------------------------------------------------
CHECKPOINTS: dict[str, Callable[[Any, Any], Any]] = {
    "a block": lambda model, x: ag.checkpoint(model)(x),
    "two blocks": lambda model, x: ag.checkpoint(model[3:])(ag.checkpoint(model[:3])(x)),
    "a block in a block": lambda model, x: ag.checkpoint(lambda y: model[3:](ag.checkpoint(model[:3])(y)))(x),
    "a value of the closure": lambda model, x: (lambda h: ag.checkpoint(lambda y: model[1:](h * y))(x[:, :1]))(
        model[0](x)),
    "no draw": lambda model, x: ag.checkpoint(model[3:])(model[:3](x)),
    "draws before and after": lambda model, x: ag.checkpoint(model)(nn.dropout(x, 0.5)) * nn.dropout(x[:, :1], 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_is_captured(name: str) -> None:
    def run(wrap: Callable[[Any], Any]) -> Any:
        random.seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))
        optimizer = optim.SGD(model.parameters(), 0.1, 0.9)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = (CHECKPOINTS[name](model, ag.tensor(x)) ** 2).mean()
            tape.backward(loss)
            optimizer.step()
            return loss

        do = wrap(step)
        found = [bits(do(data(i)[0])) for i in range(20)]
        assert getattr(do, "replays", 16) == 16
        return found, [bits(p) for p in model.parameters()], random.get_state()

    assert run(ag.capture) == run(lambda step: step)


def test_a_network_that_solves_a_differential_equation_is_captured() -> None:
    """u'' = -sin on an interval, by second derivatives inside of a training step, with Adam."""

    def run(wrap: Callable[[Any], Any]) -> Any:
        random.seed(0)
        net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = optim.Adam(net.parameters(), 0.01)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                second = ag.grad(lambda y: ag.grad(lambda z: net(z).sum())(y).sum())(x)
                loss = ((second + np.sin(x)) ** 2).mean() + (net(x[:1] * 0) ** 2).sum()
            tape.backward(loss)
            optimizer.step()
            return loss

        do = wrap(step)
        draws = numpy.random.default_rng(0)
        losses = [bits(do(ag.tensor(draws.uniform(0, 3, (16, 1)).astype("float32")))) for _ in range(24)]
        assert getattr(do, "replays", 20) == 20
        return losses, [bits(p) for p in net.parameters()]

    assert run(ag.capture) == run(lambda step: step)


# -- the proof on other values -----------------------------------------------------------------------------------------
ONES, SOME = numpy.ones(6, bool), numpy.array([1, 0, 1, 1, 0, 1], bool)
UNPROVED: dict[str, tuple[Callable[..., Any], Callable[[bool, int], tuple[Any, ...]]]] = {
    "a mask of ones": (
        lambda x, m: (ag.tensor(x).sum(1) * (2.0 * m)).sum(), lambda first, i: (_x(i), ONES if first else SOME)),
    "equal lengths": (
        lambda x, n: (ag.tensor(x).sum(1) / (1.0 + n)).sum(),
        lambda first, i: (_x(i), numpy.full(6, 3) if first else numpy.arange(6))),
    "a number of NumPy": (
        lambda x, s: ag.tensor(x) * (float(s) * 2), lambda first, i: (_x(i), numpy.float64(0.5 if first else 3))),
    "an integer of NumPy": (
        lambda x, s: ag.tensor(x) * float(s), lambda first, i: (_x(i), numpy.int64(2 if first else 3))),
    "the signs of data": (
        lambda x: ag.tensor(x) * (x > 0), lambda first, i: (abs(_x(i)) * (1 if first else -1),)),
    "the largest label": (
        lambda x, y: ag.tensor(x) * float(y.max()),
        lambda first, i: (_x(i), numpy.arange(6) if first else numpy.arange(6) // 2)),
    "the place of a maximum": (
        lambda x: ag.tensor(x)[int(x.sum(1).argmax())], lambda first, i: (_x(0 if first else i),)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNPROVED)
def test_a_constant_that_is_equal_at_first_is_refused(name: str) -> None:
    step, draw = UNPROVED[name]
    do = ag.capture(step)
    with pytest.raises(CaptureError, match="with other values of its arguments"):
        for i in range(8):
            args = draw(i < 5, i)
            assert bits(do(*args)) == bits(step(*args)), "silently wrong"


def test_a_constant_that_is_equal_to_an_argument_by_chance_is_none() -> None:
    def step(x: Any, h: Any) -> Any:
        return (ag.tensor(x) + h) * numpy.zeros((6, 4)) + numpy.ones((6, 4))

    do = ag.capture(step)
    for i in range(12):
        args = _x(i), numpy.zeros((6, 4)) if i < 8 else _x(i + 50)
        assert bits(do(*args)) == bits(step(*args))
    assert do.replays == 6  # one recording more: the first takes the zeros for a copy of the argument


def test_a_cast_that_is_not_proved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: the other values of the proof are those of the recorded run."""
    monkeypatch.setattr(guards.Form, "other", lambda form, *how: form.copied())
    do = ag.capture(lambda x: ag.tensor(x.astype("float32")) * 2.0)
    with pytest.raises(CaptureError):
        for i in range(8):
            do(_x(i))


# -- constants that are computed from arrays of the program ----------------------------------------------------------
def _of_outside(array: Any, use: Callable[[Any, Any], Any], beside: int = 0) -> Callable[[Any], Any]:
    """A step that uses an array of its closure, among others."""
    others = [numpy.full(4, float(i)) for i in range(beside)]

    def step(x: Any) -> Any:
        for other in others:
            x = x + ag.tensor(other)
        return use(ag.tensor(x), array)

    return step


OUTSIDE: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any], int]] = {
    "a number of an array": (lambda: numpy.array([2.0]), lambda x, a: x * float(a[0]), 0),
    "an array that is normalised": (lambda: numpy.arange(1.0, 5), lambda x, a: x * (a / a.sum()), 0),
    "a mask of ones": (lambda: numpy.ones(4, bool), lambda x, a: x * a.astype(float), 0),
    "equal counts": (lambda: numpy.full(4, 3), lambda x, a: x / float(a.sum()), 0),
    "the data of a Tensor": (lambda: ag.tensor(numpy.ones(4)), lambda x, a: x * float(a.array[1]), 0),
    "one array of many": (lambda: numpy.array([2.0]), lambda x, a: x * float(a[0]), 9),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_constant_of_an_array_of_the_program_is_computed_anew(name: str) -> None:
    make, use, beside = OUTSIDE[name]
    array = make()
    step = _of_outside(array, use, beside)
    do = ag.capture(step)
    for i in range(14):
        if i == 6:
            values = getattr(array, "array", array)
            values[...] = values == 0 if values.dtype.kind == "b" else 5
        assert bits(do(_x(i))) == bits(step(_x(i))), i
    assert do.replays == 8
    assert [x is array for x, _ in do._last.guard.contents] == [True]


def test_an_array_of_the_program_that_operations_read_is_not_compared() -> None:
    table = numpy.arange(4.0)
    step = _of_outside(table, lambda x, a: x * a + np.sum(ag.tensor(a)))
    do = ag.capture(step)
    for i in range(14):
        table[0] = i
        assert bits(do(_x(i))) == bits(step(_x(i))), i
    assert do.replays == 10 and not do._last.guard.contents


@pytest.mark.parametrize("kind", ["a thread of the program", "a pool", "ranks"])
def test_no_array_of_the_program_is_written_while_another_thread_may_read_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(array: Any, seed: int) -> None:
        raise AssertionError("an array of the program is written")

    monkeypatch.setattr(captured_step, "in_other", written)
    end = threading.Event()

    def run() -> None:
        do = ag.capture(_of_outside(numpy.array([2.0]), lambda x, a: x * float(a[0])))
        for i in range(6):
            do(_x(i))
        assert do.replays == 2

    if kind == "ranks":
        cc.run(run, ranks=2)
        return
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(lambda: end.wait(60) if kind == "a thread of the program" else None)
        if kind == "a pool":
            task.result(60)  # its thread waits for more
        try:
            run()
        finally:
            end.set()


def test_a_constant_of_a_large_array_of_the_program_is_refused() -> None:
    do = ag.capture(_of_outside(numpy.ones(10_000), lambda x, a: x * float(a.mean())))
    with pytest.raises(CaptureError, match="computes a constant from array by NumPy(.|\n)*fix: compute the constant"):
        for i in range(6):
            do(_x(i))


# -- hyperparameters that the step assigns --------------------------------------------------------------------------
def _at(first: float, then: float) -> Callable[[int], Any]:
    return lambda i: numpy.float64(first if i < 6 else then)


def _assign(name: str, value: Any) -> Callable[[Any, Any], Any]:
    return lambda optimizer, given: setattr(optimizer, name, value(optimizer, given))


ASSIGNED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[int], Any], str]] = {
    "a rate that is an argument": (_assign("lr", lambda o, n: n), _at(0.1, 0.01), "right"),
    "a rate that is a number": (_assign("lr", lambda o, n: n), lambda i: 0.1 if i < 6 else 0.01, "right"),
    "a rate that is computed from an argument": (_assign("lr", lambda o, n: float(n)), _at(0.1, 0.01), "refused"),
    "a rate of a group": (
        lambda o, n: o.param_groups[0].__setitem__("lr", n), _at(0.1, 0.01), "right"),
    "a rate of one of two groups": (
        lambda o, n: o.param_groups[1].__setitem__("lr", float(n)), _at(0.1, 0.01), "refused"),
    "a rate that is always the same": (_assign("lr", lambda o, n: 0.05), _at(0.1, 0.01), "right"),
    "a rate that decays": (_assign("lr", lambda o, n: o.lr * 0.9), _at(0.1, 0.01), "refused"),
    "a momentum that is decided": (
        _assign("momentum", lambda o, n: 0.9 if n > 0.05 else 0.5), _at(0.1, 0.01), "refused"),
    "a rate after the step": (lambda o, n: (o.step(keep=True), setattr(o, "lr", n)), _at(0.1, 0.01), "right"),
}  # fmt: skip


@pytest.mark.parametrize("name", ASSIGNED)
def test_a_hyperparameter_that_the_step_assigns_is_right_or_refused(name: str) -> None:
    """Between the calls the program assigns the rate, too, which a step that assigns it does not use."""
    change, given, expected = ASSIGNED[name]

    def run(wrap: Callable[[Any], Any]) -> Any:
        w, v = ag.Parameter(numpy.ones((4, 2))), ag.Parameter(numpy.ones(2))
        groups: Any = [{"params": [w]}, {"params": [v], "lr": 0.02}] if "two groups" in name else [w, v]
        optimizer = optim.SGD(groups, 0.1, 0.9)

        def step(x: Any, number: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = (np.tanh(ag.tensor(x) @ w + v) ** 2).mean()
            tape.backward(loss)
            change(optimizer, number)
            optimizer.step()
            return loss

        do, found = wrap(step), []
        for i in range(16):
            if i == 6 and "decays" not in name:
                optimizer.lr = 0.5
            found.append((bits(do(_x(i), given(i))), bits(w), bits(v), float(optimizer.lr)))
        return found

    try:
        found = run(ag.capture)
    except CaptureError as error:
        assert expected == "refused" and "has left another value" not in str(error), error
        return
    assert expected == "right"
    assert found == run(lambda step: step)


# -- a refusal leaves one step -----------------------------------------------------------------------------------------
def _counts(t: Training, x: Any, y: Any, loss: Any) -> None:
    t.found.append(1)


REFUSED: dict[str, tuple[Callable[..., Any] | None, Callable[..., Any] | None]] = {
    "a number before the change": (lambda t, x, y, loss: float(loss), None),
    "a number after the change": (None, lambda t, x, y, loss: float(loss)),
    "a constant of an argument before the change": (lambda t, x, y, loss: ag.tensor(x / 2) * 3.0, None),
    "a constant of an argument after the change": (None, lambda t, x, y, loss: ag.tensor(x / 2) * 3.0),
    "a draw of NumPy": (None, lambda t, x, y, loss: ag.tensor(x) + numpy.random.default_rng().normal(size=4)),
    "a write to a parameter": (None, lambda t, x, y, loss: t.model[0].weight.array.__imul__(0.5)),
    "a write to a gradient": (lambda t, x, y, loss: t.model[0].weight.grad.array.__imul__(0.5), None),
    "a write to an argument": (None, lambda t, x, y, loss: x.__imul__(0.5)),
    "a list that grows": (None, _counts),
    "a decision after the change": (
        None, lambda t, x, y, loss: np.median(t.model(ag.tensor(x)))),
}  # fmt: skip


def steps_of(name: str, wrap: Callable[[Any], Any]) -> tuple[list[Any], int]:
    """The state after each call of a step, and the number of calls that were refused."""
    before, after = REFUSED[name]
    t = Training()
    t.optimizer = optim.Adam(t.model.parameters(), 0.1)

    def step(x: Any, y: Any) -> Any:
        t.optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = t.loss(x, y)
        tape.backward(loss)
        if before is not None:
            before(t, x, y, loss)
        t.optimizer.step()
        if after is not None:
            after(t, x, y, loss)
        return loss

    do, refused, found = wrap(step), 0, []
    for i in range(8):
        x, y = data(i)
        try:
            do(x, y)
        except CaptureError as error:
            assert "The step itself has run in this call" in str(error)
            refused += 1
        found.append((bits(x), [bits(p) for p in t.model.parameters()], [bits(p.grad) for p in t.model.parameters()],
                      bits(t.optimizer.first), t.found[:], random.get_state()))  # fmt: skip
    return found, refused


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_leaves_one_step(name: str) -> None:
    expected, _ = steps_of(name, lambda step: step)
    found, refused = steps_of(name, ag.capture)
    assert refused
    assert found == expected


def test_a_form_too_many_leaves_one_step() -> None:
    t = Training()
    do = ag.capture(lambda x, factor: t.step(*data(0)) * factor)
    refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(24):
            try:
                do(data(i)[0], 0.5 + i)
            except CaptureError:
                refused += 1
    assert refused and t.optimizer.state_dict()["steps" if "steps" in t.optimizer.state_dict() else "step"] == 24


# -- other decisions ---------------------------------------------------------------------------------------------------
def test_what_a_step_does_after_another_decision_is_recorded_too() -> None:
    """Large inputs of a softmax are shifted, small ones need not be: a record has one of both."""
    x = numpy.random.default_rng(7).standard_normal((4, 3))
    do = ag.capture(lambda x: nn.log_softmax(ag.tensor(x), -1), warmup=0)
    for k in range(5):
        do(x + k)
    assert "calls ran the step itself" not in str(do)
    for k in range(12):
        for scale in (1, 1000):
            assert bits(do(scale * x + k)) == bits(nn.log_softmax(ag.tensor(scale * x + k), -1))
    assert (do.replays, do.departures) == (3 + 12 + 8, 4)
    assert "4 calls ran the step itself: a decision on data was another one" in str(do)


def test_decisions_that_alternate_from_the_first_call_on() -> None:
    x = numpy.random.default_rng(7).standard_normal((4, 3))
    do = ag.capture(lambda x: nn.log_softmax(ag.tensor(x), -1), warmup=0)
    for k in range(12):
        for scale in (1, 1000):
            assert bits(do(scale * x + k)) == bits(nn.log_softmax(ag.tensor(scale * x + k), -1))
    assert do.replays >= 24 - 8, do


def test_decisions_that_are_others_in_each_call_are_told() -> None:
    """Each call has another number of classes, which the library reads from the labels."""
    p = ag.Parameter(numpy.ones(1))
    do = ag.capture(lambda labels: (p * F.one_hot(labels)).sum(), warmup=0)
    with pytest.raises(CaptureError, match=r"recorded without a replay(?s:.)*decided otherwise"):
        for k in range(40):
            do(numpy.array([0, k]))


BRANCHES: dict[str, tuple[Check, list[Any]]] = {
    "a shift of a softmax": (lambda p, x: nn.log_softmax(p + ag.tensor(x), -1), [1.0, 1e3, 1.0, 1e4]),
    "a softmax of what is infinite": (lambda p, x: nn.softmax(p + ag.tensor(x), -1), [1.0, 1e3, -numpy.inf]),
    "a median of NaN": (lambda p, x: p * ag.constant(np.median(ag.tensor(x)) * 0), [1.0, numpy.nan]),
}  # fmt: skip


@pytest.mark.parametrize("warmup", [0, 2])
@pytest.mark.parametrize("name", BRANCHES)
@pytest.mark.filterwarnings("ignore")
def test_decisions_that_change_from_call_to_call(name: str, warmup: int) -> None:
    value, scales = BRANCHES[name]
    rng = numpy.random.default_rng(3)
    chosen = [scales[0]] * 7 + [scales[i] for i in rng.integers(0, len(scales), 60)]
    if warmup == 0:  # the recordings, too, meet other decisions
        chosen = chosen[7:]
    inputs = [rng.standard_normal((4, 4)) * scale if abs(scale) < numpy.inf else numpy.full((4, 4), scale)
              for scale in chosen]  # fmt: skip

    def run(wrap: Callable[[Any], Any]) -> tuple[list[Any], Any]:
        p = ag.Parameter(numpy.linspace(-1, 1, 16).reshape(4, 4), name="p")
        optimizer = optim.SGD([p], 1e-3, 0.9)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = (value(p, x) ** 2).sum()
            tape.backward(loss)
            optimizer.step()
            return loss

        do = wrap(step)
        return [(bits(do(x)), bits(p), bits(p.grad), bits(optimizer.velocity)) for x in inputs], do

    expected, _ = run(lambda step: step)
    found, do = run(lambda step: ag.capture(step, warmup=warmup))
    assert do.replays > len(inputs) - 30
    assert found == expected


def test_labels_that_are_ignored_from_some_call_on() -> None:
    p = ag.Parameter(numpy.linspace(-1, 1, 16).reshape(4, 4))
    do = ag.capture(lambda labels: nn.cross_entropy(p, labels), warmup=0)
    for k in range(40):
        labels = numpy.where(numpy.arange(4) < k % 3 * (k > 9), -100, k % 4)
        assert bits(do(labels)) == bits(nn.cross_entropy(p, labels)), k
    assert do.replays >= 40 - 2 - 4 and do.departures <= 4


def test_another_decision_that_cannot_be_recorded_runs_the_step() -> None:
    def step(x: Any) -> Any:
        y = nn.log_softmax(ag.tensor(x), -1)
        return y * float(y[0, 0]) if y.array.min() < -100 else y

    x = numpy.random.default_rng(7).standard_normal((4, 3))
    do = ag.capture(step, warmup=0)
    for _ in range(4):
        do(x)
    for k in range(40):
        assert bits(do(1000 * x + k)) == bits(step(1000 * x + k))
        assert bits(do(x + k)) == bits(step(x + k))
    assert do.departures == 40 and do.replays == 42
