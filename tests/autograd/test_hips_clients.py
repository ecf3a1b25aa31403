"""Programs in the manner of packages that are built on HIPS autograd. Each of them failed, or gave a wrong number."""

from __future__ import annotations

import warnings
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd.core import VJPNode, backward_pass
from autograd.extend import Box, defjvp, defvjp, primitive
from autograd.numpy.numpy_boxes import ArrayBox
from autograd.numpy.numpy_vspaces import ArrayVSpace
from autograd.test_util import check_grads
from autograd.tracer import isbox, new_box, trace_stack

X = numpy.array([1.0, 2.0, 3.0])


# -- functions of autograd.numpy -------------------------------------------------------------------------------------
def test_an_empty_list_is_an_index() -> None:
    y, pullback = ag.vjp(lambda x: x[[]], X)
    assert y.shape == (0,) and pullback(numpy.zeros(0)).tolist() == [0, 0, 0]
    assert ag.grad(lambda x: np.sum(x[:, []]) + np.sum(x))(numpy.ones((2, 2))).tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("join", [np.stack, np.concatenate, np.vstack, np.hstack, np.dstack, np.column_stack])
def test_the_arrays_of_an_iterator_are_joined(join: Any) -> None:
    for x in (X, numpy.ones((2, 2))):
        expected = join([x, 2 * x])
        assert numpy.array_equal(join(map(x.__mul__, (1.0, 2.0))), expected)
        assert ag.grad(lambda x: np.sum(join(k * x for k in (1.0, 2.0))))(x).ravel()[0] == 3.0


def test_elementwise_grad_at_integers() -> None:  # as in lifelines
    assert ag.elementwise_grad(lambda t: t**1.5 / 3.0)(numpy.array([1, 4])).tolist() == [0.5, 1.0]
    with pytest.raises(ag.DtypeError):
        ag.grad(lambda t: np.sum(t**1.5))(numpy.array([1, 4]))


def test_concatenate_of_nothing_is_numpys_error() -> None:
    with pytest.raises(ValueError, match="need at least one array to concatenate"):
        np.concatenate([])


def test_functions_of_operators_are_numpys_on_plain_data() -> None:
    assert np.add([1, 2], [3, 4]).tolist() == [4, 6]  # it joined the lists
    assert np.multiply([1, 2], 2).tolist() == [2, 4]
    for function in (np.add, np.subtract, np.multiply, np.divide, np.power, np.mod):
        assert function(3.0, 2.0).dtype == float
    assert np.negative(2.0).dtype == float
    safe = np.divide(X, [0.0, 1.0, 2.0], out=np.zeros(3), where=numpy.array([False, True, True]))
    assert safe.tolist() == [0, 2, 1.5]
    assert np.matmul(numpy.eye(2), numpy.eye(2), out=np.zeros((2, 2))).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("words", [{"out": numpy.zeros(3)}, {"where": X > 1}])
def test_an_operation_has_no_out_and_no_where(words: Any) -> None:
    with pytest.raises(ag.NotDifferentiable):
        ag.grad(lambda x: np.sum(np.add(x, x, **words)))(X)
    assert ag.grad(lambda x: np.sum(np.multiply(x, x, dtype=float)))(X) == pytest.approx(2 * X)
    with pytest.raises(TypeError):  # NumPy refuses it, too
        ag.grad(lambda x: np.sum(np.divide(x, x, dtype=int)))(X)
    with pytest.raises(TypeError):
        np.ravel(X, where=True, out=X)


# -- boxes and nodes -------------------------------------------------------------------------------------------------
def test_a_function_is_traced_by_hand() -> None:
    def value_and_jacobian(f: Any, x: Any) -> tuple[Any, Any]:  # as in pymoo: without a block
        start = new_box(x, 0, VJPNode.new_root())
        y = f(start)
        rows = [backward_pass(new_box(unit, 0, VJPNode.new_root()), y._node) for unit in numpy.eye(y.size)]
        return numpy.array(y._value), np.stack(rows)._value

    y, jacobian = value_and_jacobian(lambda x: np.array([x[0] * x[1], np.sum(x**2)]), X)
    assert y.tolist() == [2, 14] and jacobian.tolist() == [[2, 1, 0], [2, 4, 6]]
    w = ag.Parameter(2.0)
    assert not (w * w).requires_grad, "the recording ends with the box"


def test_independence_of_an_argument_is_found() -> None:  # as in PennyLane
    def depends(f: Any, *args: Any) -> bool:
        node = VJPNode.new_root()
        with trace_stack.new_trace() as trace:
            start = new_box(args, trace, node)
            end = f(*start)
        return isbox(end) and end._trace == start._trace

    assert depends(lambda x, y: x * 2.0, 1.0, 2.0) and not depends(lambda x, y: 3.0, 1.0, 2.0)
    gradient = None
    node = VJPNode.new_root()
    with trace_stack.new_trace() as trace:
        start = new_box({"a": 3.0, "b": X}, trace, node)
        end = start["a"] ** 2
    gradient = backward_pass(1.0, end._node)
    assert float(gradient["a"]) == 6.0 and gradient["b"].tolist() == [0, 0, 0]
    with pytest.raises(ag.TapeError, match="depends on no box"):
        backward_pass(1.0, VJPNode.new_root())


def test_the_value_of_a_box_belongs_to_the_outer_transform() -> None:
    assert ag.grad(lambda x: x * x._value)(3.0) == 3.0
    assert ag.grad(ag.grad(lambda x: x * x._value))(3.0) == 1.0
    assert ag.grad(ag.grad(ag.grad(lambda x: x * x * x._value)))(3.0) == 4.0
    assert ag.grad(lambda x: x * isinstance(x, ArrayBox) * isinstance(x, Box))(3.0) == 1.0
    assert not isinstance(3.0, ArrayBox) and ArrayVSpace(X).size == 3


class Marked(numpy.ndarray):
    """An array that says whether it is trainable, as PennyLane's tensor does."""

    trainable = True
    __hash__: Any = lambda self: (_ for _ in ()).throw(TypeError("unhashable"))


def test_a_subclass_of_arrays_is_boxed_by_its_function() -> None:
    def boxed(x: Any, *args: Any) -> Any:
        if not x.trainable:
            raise ValueError("not trainable")
        return ArrayBox(x, *args)

    Box.type_mappings[Marked] = boxed
    try:
        x = X.view(Marked)
        f = lambda x: np.sum(np.stack([np.sin(x), x])) + np.sum(np.where(x > 1, x, 0.0))
        assert ag.grad(f)(x) == pytest.approx(ag.grad(f)(X))
        assert np.take(ag.grad(lambda y: np.sum(np.dot(y, x)))(X), [0]) == 1.0
        x.trainable = False
        with pytest.raises(ValueError, match="not trainable"):
            ag.grad(f)(x)
    finally:
        del Box.type_mappings[Marked]


def test_all_functions_of_a_module_are_wrapped() -> None:
    found = {name for module in (np, np.random) for name, x in vars(module).items() if callable(x)}
    assert "__getattr__" not in found
    assert ag.builtins.tuple is tuple and np.builtins.SequenceBox is not None and np.numpy_boxes.ArrayBox is Box


# -- rules -----------------------------------------------------------------------------------------------------------
def test_a_rule_gives_an_array_for_a_list() -> None:
    total = primitive(lambda xs, scale: scale * sum(xs))
    defvjp(total, lambda ans, xs, scale: lambda g: g * scale * numpy.ones(len(xs)), argnums=(0,))
    f = lambda x: total([x[0], x[1] * 2.0, 1.0], 3.0)
    assert ag.grad(f)(X).tolist() == [3, 6, 0]
    nested = primitive(lambda xs: xs[0][0] * xs[1][0])
    defvjp(nested, lambda ans, xs: lambda g: iter([[g * xs[1][0]], numpy.array([g * xs[0][0]])]))
    assert ag.grad(lambda x: nested([[x[0]], (x[1],)]))(X).tolist() == [2, 1, 0]
    wrong = primitive(lambda xs: sum(xs))
    defvjp(wrong, lambda ans, xs: lambda g: numpy.ones(5))
    with pytest.raises(ag.ArgumentError, match="of length 2"):
        ag.grad(lambda x: wrong([x[0], x[1]]))(X)


def test_jacobian_uses_the_rule_that_there_is() -> None:
    square = primitive(lambda x: numpy.array([x**2, x**3]))
    defvjp(square, lambda ans, x: lambda g: float(g[0]) * 2 * x + float(g[1]) * 3 * x**2)  # no Tensors in this rule
    assert ag.jacobian(square)(2.0).tolist() == [4, 12]
    defjvp(square, lambda g, ans, x: g * numpy.array([2 * x, 3 * x**2]))
    assert ag.jacobian(square)(2.0).tolist() == [4, 12]


def test_rules_of_a_plain_function_are_kept_with_a_warning() -> None:
    def plain(x: Any) -> Any:
        return x**2

    with pytest.warns(ag.GradientWarning, match="plain, which is no primitive") as seen:
        defvjp(plain, lambda ans, x: lambda g: g * 100)
    assert len(seen) == 1 and ag.grad(plain)(3.0) == 6.0
    with pytest.raises(ag.NotDifferentiable):
        defvjp(ag.ops.relu, lambda ans, x: lambda g: g)


def test_a_function_of_scipy_takes_a_rule() -> None:  # as in ssm, which has rules for banded systems
    linalg = pytest.importorskip("autograd.scipy.linalg")
    functions = [linalg.solve_banded, linalg.solve_triangular, linalg.solve_sylvester, linalg.sqrtm]
    assert [f.__name__ for f in functions] == ["solve_banded", "solve_triangular", "solve_sylvester", "sqrtm"]
    bands, b = numpy.array([[0.0, 1.0, 1.0], [4.0, 4.0, 4.0], [1.0, 1.0, 0.0]]), X
    f = lambda b: np.sum(linalg.solve_banded((1, 1), bands, b) ** 2)
    expected = ag.grad(f)(b)
    y = linalg.solve_banded((1, 1), bands, b)
    seen = []

    def rule(ans: Any, bounds: Any, bands: Any, b: Any) -> Any:
        seen.append(bounds)
        return lambda g: linalg.solve_banded((1, 1), bands, g)  # the matrix is symmetric

    rules = ag.extend.primitive_vjps
    try:
        defvjp(linalg.solve_banded, None, None, rule)
        assert ag.grad(f)(b) == pytest.approx(expected) and seen == [(1, 1)]
        assert linalg.solve_banded((1, 1), bands, b).tolist() == y.tolist()
    finally:
        rules.pop(linalg.solve_banded, None)
    assert ag.grad(f)(b) == pytest.approx(expected) and len(seen) == 1


def test_a_primitive_takes_a_value_in_an_object() -> None:
    class Circuit:
        def __init__(self, x: Any):
            self.x = x

    run = primitive(lambda parameters, circuit: np.sin(circuit.x))  # its rule gives the gradient of the parameters
    defvjp(run, lambda ans, parameters, circuit: lambda g: [g * np.cos(circuit.x)], argnums=(0,))
    f = lambda x: run([x], Circuit(x))
    assert ag.grad(f)(0.5) == pytest.approx(numpy.cos(0.5))
    with pytest.raises(ag.NotDifferentiable, match="closes over"):  # the rule has the gradient of another value
        ag.grad(lambda x: run([x * 1.0], Circuit(x)))(0.5)


def test_compiled_code_asks_for_writable_buffers() -> None:  # as Cython's double[:], in ssm
    def compiled(x: Any) -> Any:
        if not x.flags.writeable:
            raise ValueError("buffer source array is read-only")
        return x * 2.0

    double = primitive(compiled)
    defvjp(double, lambda ans, x: lambda g: compiled(x) * 0.0 + double(x) * 0.0 + compiled(ans) * 0.0 + 2.0 * g)
    locked = X.copy()
    locked.flags.writeable = False
    assert double(locked).tolist() == [2, 4, 6] and not locked.flags.writeable
    assert ag.grad(lambda x: np.sum(double(x) * x))(X).tolist() == [4, 8, 12]
    check_grads(double, modes=["rev"], order=1)(X)
    written = primitive(lambda x: x.__setitem__(0, 1.0))
    with pytest.raises(ag.SavedArrayError):
        ag.grad(lambda x: np.sum(x * x) + written(x))(X.copy())


# -- arrays that are written to --------------------------------------------------------------------------------------
def test_a_transform_keeps_the_values_at_the_call() -> None:
    def f(w: Any) -> Any:
        x, total = numpy.zeros(3), 0.0
        for i in range(3):
            x[i] = i + 1.0
            total = total + np.sum(w * x) + np.sum(np.where(x > 2, w, 0.0))
        return total

    assert ag.grad(f)(numpy.ones(3)).tolist() == [3, 4, 4]
    w = numpy.ones(3)
    pullback, _ = ag.make_vjp(lambda w: np.sum(w**3))(w)
    w += 1
    assert pullback(1.0).tolist() == [3, 3, 3]


def test_large_arrays_and_tapes_refuse_the_write() -> None:
    big = numpy.ones(2**18)

    def f(w: Any) -> Any:
        y = np.sum(w * big)
        big[0] = 2.0
        return y

    with pytest.raises(ag.SavedArrayError):
        ag.grad(f)(1.0)
    x, w = numpy.ones(3), ag.Parameter(2.0)
    with pytest.raises(ag.SavedArrayError), ag.Tape():
        np.sum(w * x)
        x[0] = 2.0


def test_importing_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from autograd.differential_operators import _make_jvp, _make_vjp, unary_to_nary, vspace
        from autograd.numpy.numpy_wrapper import concatenate_args, sin
    pullback, y = _make_vjp(np.sin, 0.0)  # as in geomstats
    assert pullback(2.0) == 2.0 and y == 0.0 and _make_jvp(np.sin, 0.0)(1.0)[1] == 1.0
    assert unary_to_nary and vspace and sin is np.sin and concatenate_args(0, X, X).shape == (6,)
