"""Arrays that a tape saved cannot be written to until it is released; every way to write that NumPy has, tried.

What is left open stands at the end, with what finds it: `detect_anomaly`, by digests.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd.engine.recording import COPIED_BYTES
from autograd.extend import defvjp, notrace_primitive, primitive

from ...tables import each

Array = Any
AT_WRITES = numpy.lib.NumpyVersion(numpy.__version__) < "2.5.0"  # `ufunc.at`, to plain read-only arrays


WRITES: dict[str, Callable[[Array], Any]] = {
    "assignment": lambda a: a.__setitem__(0, 9.0),
    "assignment to all": lambda a: a.__setitem__(Ellipsis, 9.0),
    "+=": lambda a: a.__iadd__(1.0),
    "*= on a view": lambda a: a[:1].__imul__(2.0),
    "@=": lambda a: numpy.matmul(a.reshape(1, -1), numpy.ones((a.size, a.size)), out=a.reshape(1, -1)),
    "out= of a ufunc": lambda a: numpy.add(a, 1.0, out=a),
    "out= of a view": lambda a: numpy.exp(a, out=a[...]),
    "out= of a transpose": lambda a: numpy.exp(a, out=a.T),
    "out= of two": lambda a: numpy.divmod(a, 2.0, out=(a, numpy.empty_like(a))),
    "ufunc.at": lambda a: numpy.add.at(a, [0], 1.0),
    "ufunc.reduce out": lambda a: numpy.add.reduce(numpy.ones((2, a.size)), axis=0, out=a),
    "sum out": lambda a: numpy.sum(numpy.ones((2, a.size)), axis=0, out=a),
    "clip out": lambda a: numpy.clip(a, 0, 0.5, out=a),
    "cumsum method out": lambda a: a.cumsum(out=a),
    "dot out": lambda a: numpy.dot(numpy.eye(a.size), a, out=a),
    "take out": lambda a: numpy.take(numpy.zeros(9), numpy.arange(a.size), out=a),
    "concatenate out": lambda a: numpy.concatenate([a[:1] * 0, a[1:]], out=a),
    "sort": lambda a: a.sort(),
    "partition": lambda a: a.partition(1),
    "fill": lambda a: a.fill(0.0),
    "put": lambda a: a.put([0], 9.0),
    "numpy.put": lambda a: numpy.put(a, [0], 9.0),
    "putmask": lambda a: numpy.putmask(a, a > 0, 9.0),
    "place": lambda a: numpy.place(a, a > 0, [9.0]),
    "copyto": lambda a: numpy.copyto(a, 0.0),
    "put_along_axis": lambda a: numpy.put_along_axis(a, numpy.array([0]), 9.0, 0),
    "fill_diagonal": lambda a: numpy.fill_diagonal(a.reshape(1, -1), 9.0),
    "random shuffle": lambda a: numpy.random.default_rng(0).shuffle(a),
    "random out": lambda a: numpy.random.default_rng(0).random(a.size, out=a),
    "flat": lambda a: a.flat.__setitem__(0, 9.0),
    "nditer": lambda a: numpy.nditer(a, op_flags=[["readwrite"]]),
    "real": lambda a: setattr(a, "real", 9.0),
    "setfield": lambda a: a.setfield(9.0, a.dtype),
    "byteswap": lambda a: a.byteswap(inplace=True),
    "resize": lambda a: a.resize((9,), refcheck=False),
    "setflags": lambda a: a.setflags(write=True),
    "setflags of a view": lambda a: a.view(numpy.ndarray).setflags(write=True),
    "flags": lambda a: setattr(a.flags, "writeable", True),
    "flags of asarray": lambda a: setattr(numpy.asarray(a).flags, "writeable", True),
    "memoryview": lambda a: memoryview(a).cast("B").__setitem__(0, 1),
    "base": lambda a: a.base.__setitem__(0, 9.0),
    "base of the base": lambda a: numpy.asarray(a.base).__setitem__(0, 9.0),
    "frombuffer": lambda a: numpy.frombuffer(a).__setitem__(0, 9.0),
    "view of another dtype": lambda a: a.view("u1").__setitem__(0, 1),
    "stride tricks": lambda a: numpy.lib.stride_tricks.as_strided(a, writeable=True).__setitem__(0, 9.0),
    "asarray without a copy": lambda a: numpy.asarray(a, copy=False).__setitem__(0, 9.0),
    "from_dlpack": lambda a: numpy.from_dlpack(a).__setitem__(0, 9.0),
    "savetxt and back": lambda a: numpy.ndarray(a.shape, a.dtype, a).__setitem__(0, 9.0),
}

HOLDERS: dict[str, Callable[[], tuple[Any, Any]]] = {}


def holder(f: Callable[[], tuple[Any, Any]]) -> Callable[[], tuple[Any, Any]]:
    HOLDERS[f.__name__] = f
    return f


@holder
def a_parameter() -> tuple[Any, Any]:
    w = ag.Parameter([3.0, 1.0, 2.0])
    return w, w


@holder
def a_tensor_of_a_list() -> tuple[Any, Any]:
    x = ag.tensor([3.0, 1.0, 2.0])
    return x, ag.Parameter(numpy.ones(3))


@holder
def a_tensor_of_an_array() -> tuple[Any, Any]:
    x = ag.tensor(numpy.array([3.0, 1.0, 2.0]), requires_grad=True)
    return x, x


@holder
def a_result() -> tuple[Any, Any]:
    w = ag.Parameter([3.0, 1.0, 2.0])
    return None, w


def saved(kind: str) -> tuple[Any, Any, Any]:
    """A tape, its loss, and a Tensor whose array it has saved."""
    x, w = HOLDERS[kind]()
    with ag.Tape() as tape:
        x = np.exp(w) if x is None else x
        loss = (x * w * x).sum()
    return tape, loss, x


@each(itertools.product(WRITES, HOLDERS), lambda pair: pair[1])
def test_no_way_leads_to_a_write(name_and_kind: tuple[str, str]) -> None:
    name, kind = name_and_kind
    tape, loss, x = saved(kind)
    bare = () if name == "ufunc.at" and AT_WRITES else (numpy.array(x, copy=False),)  # see the test at the end
    for seen in (x.data, x.numpy(), *bare):
        before = x.array.tobytes()
        with pytest.raises((ValueError, TypeError, AttributeError, BufferError)):
            WRITES[name](seen)
            if name.startswith(("setflags", "flags")):
                raise AssertionError("the flag could be set")
        assert x.array.tobytes() == before, "the array has changed"
    tape.backward(loss)


OURS = ("assignment", "+=", "*= on a view", "out= of a ufunc", "ufunc.at", "sum out", "clip out", "sort", "partition",
        "fill", "put", "numpy.put", "putmask", "copyto", "setflags", "setfield", "byteswap", "resize")  # fmt: skip


@pytest.mark.parametrize("name", OURS)
def test_the_common_ways_say_what_is_wrong(name: str) -> None:
    _, _, x = saved("a_result")
    with pytest.raises(ag.SavedArrayError, match="that a tape still needs for its backward pass"):
        WRITES[name](x.data)


def test_0d_and_empty_and_strided_arrays() -> None:
    for array in (numpy.array(2.0), numpy.zeros((0, 3)), numpy.arange(12.0).reshape(3, 4)[::-1, ::2].T,
                  numpy.ones(3, "complex64"), numpy.ones(2, "float16"), numpy.ones((2, 2), "F")):  # fmt: skip
        w = ag.tensor(array, requires_grad=True)
        with ag.Tape() as tape:
            y = w * w
            for x in (w, y):
                with ag.no_grad():
                    seen = x.data
                if not isinstance(seen, numpy.ndarray):
                    continue  # a NumPy scalar cannot be written to
                assert numpy.array_equal(seen, x.array) and seen.dtype == x.dtype
                assert not seen.size or seen.strides == x.array.strides and numpy.shares_memory(seen, x.array)
                with pytest.raises(ag.SavedArrayError):
                    seen[...] = 1
                with pytest.raises(ValueError, match="WRITEABLE|needs for"):
                    numpy.asarray(seen).flags.writeable = True
        tape.backward(y, numpy.ones(y.shape, y.dtype))


def test_the_users_own_array_is_read_only_and_comes_back() -> None:
    a = numpy.ones(3)
    w = ag.Parameter([1.0, 2.0, 3.0])
    with ag.Tape() as tape:
        loss = (ag.tensor(a) * w).sum()
    for write in ("assignment", "+=", "out= of a ufunc", "sort", "fill", "put", "copyto", "memoryview"):
        with pytest.raises((ValueError, TypeError), match="read-only"):
            WRITES[write](a)
    tape.backward(loss)
    a += 1
    assert a.tolist() == [2, 2, 2]


def test_a_plain_array_operand_and_a_condition_are_saved_too() -> None:
    a, mask, labels = numpy.ones(3), numpy.array([True, False, True]), numpy.array([0, 1])
    w = ag.Parameter([1.0, 2.0, 3.0])
    from autograd import nn

    with ag.Tape() as tape:
        loss = np.where(mask, w * a, 0.0).sum()
        loss = loss + nn.cross_entropy(w.reshape(1, 3) * numpy.ones((2, 1)), labels, reduction="sum")
    for array in (a, mask, labels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    tape.backward(loss)
    a[0], mask[0], labels[0] = 0, False, 1


def test_a_file_in_memory() -> None:
    """np.memmap is a subclass of ndarray, and was not locked."""
    with tempfile.TemporaryDirectory() as folder:
        a = numpy.memmap(Path(folder) / "a", "float64", "w+", shape=(3,))
        w = ag.Parameter([1.0, 2.0, 3.0])
        with ag.Tape() as tape:
            loss = (ag.tensor(a) * w).sum()
        with pytest.raises(ValueError, match="read-only"):
            a[0] = 5.0
        tape.backward(loss)
        a[0] = 5.0
        del a, loss, tape


VIEWS: list[Array] = []
OPEN: dict[str, Callable[[Array], None]] = {
    "a view made before": lambda a: VIEWS[0].__iadd__(1.0),
}
if AT_WRITES:
    OPEN["ufunc.at, which does not look at the flag"] = WRITES["ufunc.at"]


@pytest.mark.parametrize("name", OPEN)
def test_what_is_left_open_is_found_by_digests(name: str) -> None:
    """Flags of one array say nothing of another's, and `ufunc.at` of NumPy before 2.5 writes to read-only arrays."""
    for watched in (False, True):
        part = numpy.ones((2, 3))[1]
        VIEWS[:] = [part[:]]
        w = ag.Parameter([1.0, 2.0, 3.0])
        with ag.detect_anomaly(writes=watched):
            with ag.Tape() as tape:
                loss = (ag.tensor(part) * w).sum()
            OPEN[name](part)  # no error here
            if watched:
                with pytest.raises(ag.SavedArrayError, match="operand x of multiply.*was written to"):
                    tape.backward(loss)
            else:
                tape.backward(loss)


PARTS: dict[str, Callable[[Array], Array]] = {
    "a row": lambda a: a[1],
    "rows": lambda a: a[:2],
    "a transpose": lambda a: a.T[1],
    "another shape": lambda a: a.reshape(-1),
    "another dtype": lambda a: a.view("i8").view("f8"),
    "from the end": lambda a: a[::-1],
}


@pytest.mark.parametrize("columns", [3, 200_000])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_an_array_of_the_program_is_copied_or_its_whole_is_read_only(name: str, columns: int) -> None:
    whole = numpy.ones((4, columns))
    w = ag.Parameter(numpy.asarray(2.0))
    with ag.Tape() as tape:
        part = PARTS[name](whole)
        loss = np.sum((w * part) ** 2)
        is_copied = part.nbytes <= COPIED_BYTES
        if is_copied:
            whole[...] = 9.0
        else:
            with pytest.raises(ValueError, match="read-only"):
                whole[...] = 9.0
    tape.backward(loss)
    assert w.grad.numpy() == 4.0 * part.size
    part[...] = whole[...] = 9.0  # released


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex128", "int64"])
def test_a_buffer_of_any_dtype_can_be_filled_again(dtype: str) -> None:
    whole = numpy.zeros((2, 3), dtype)
    w = ag.Parameter(numpy.ones(3, "complex128" if dtype == "complex128" else "float32"))
    with ag.Tape() as tape:
        loss: Any = 0.0
        for step in (1, 2, 3):
            whole[0] = step
            loss = loss + np.real(w * whole[0] * w).sum()
    tape.backward(loss)
    assert numpy.array_equal(w.grad.numpy(), numpy.full(3, 12.0))


def test_the_whole_of_a_part_that_is_a_tensor_is_read_only() -> None:
    for requires in (False, True):
        whole = numpy.ones((4, 3))
        x, w = ag.tensor(whole[1], requires_grad=requires), ag.Parameter([1.0, 2.0, 3.0])
        with ag.Tape() as tape:
            loss = (w * x).sum()
            with pytest.raises(ValueError, match="read-only"):
                whole[...] = 9.0
        tape.backward(loss)
        assert w.grad.tolist() == [1.0, 1.0, 1.0]
        whole[...] = 9.0


def test_an_error_in_the_block_of_a_tape_releases_its_arrays_while_the_error_is_kept() -> None:
    w, x = ag.Parameter([1.0, 2.0]), np.ones(2)
    with pytest.raises(ag.ShapeError) as caught, ag.Tape() as tape:
        loss = (w * ag.tensor(x)).sum()
        np.reshape(loss, (3,))
    assert caught.value.__traceback__ is not None and w.array.flags.writeable and x.flags.writeable
    with pytest.raises(ag.TapeError, match="released"):
        tape.backward(loss)


def test_an_error_in_backward_releases_the_arrays_unless_they_are_retained() -> None:
    def failing(ct: Any, *_: Any) -> Any:
        raise ArithmeticError

    for retain in (False, True):
        w = ag.Parameter([1.0, 2.0])
        with ag.Tape() as tape:
            y = w * w
            tape.mark(failing)
            loss = y.sum()
        with pytest.raises(ArithmeticError) as caught:
            tape.backward(loss, retain=retain)
        assert caught.value.__traceback__ is not None and w.array.flags.writeable is not retain


def test_a_leaf_that_is_a_part_of_a_saved_array_is_released_with_it() -> None:
    whole = np.ones((4, 2))
    w = ag.Parameter(np.zeros((2, 2)))
    w.array = whole[:2]  # as the rows of a rank are a part of the gathered array
    with ag.Tape() as tape:
        loss = (w * w).sum() + (ag.tensor(whole) * ag.tensor(whole, requires_grad=True)).sum()
    assert not whole.flags.writeable
    tape.backward(loss)
    assert whole.flags.writeable and w.array.flags.writeable


def outside(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def made(y: Any) -> Any:
        with ag.no_grad():
            return f(y)

    return made


OFF_THE_TAPE: dict[str, Callable[[Any], Any]] = {
    "stop_gradient": ag.stop_gradient,
    "a part of stop_gradient": lambda y: ag.stop_gradient(y)[:1],
    "detach": lambda y: y.detach(),
    "a slice under no_grad": outside(lambda y: y[1:]),
    "a transpose under no_grad": outside(lambda y: y.T),
    "a shape under no_grad": outside(lambda y: y.reshape(3, 1)),
    "a split under no_grad": outside(lambda y: np.split(y, 3)[0]),
    "a part of a part under no_grad": outside(lambda y: y[1:][:1]),
    "a user's operation": notrace_primitive(lambda y: y),
    "a user's operation under no_grad": outside(primitive(lambda y: y[:2])),
}


@pytest.mark.parametrize("way", OFF_THE_TAPE)
def test_what_left_the_tape_shares_no_writeable_memory_with_it(way: str) -> None:
    w = ag.Parameter([3.0, 1.0, 2.0])
    with ag.Tape() as tape:
        y = w * 2.0
        seen = OFF_THE_TAPE[way](y)
        with pytest.raises((ag.SavedArrayError, ValueError)):
            (seen if isinstance(seen, numpy.ndarray) else seen.numpy())[...] = 9.0
        loss = (y * y).sum()
    tape.backward(loss)
    assert numpy.array_equal(w.grad.numpy(), 8 * w.numpy())


@pytest.mark.parametrize("way", ["stop_gradient", "a slice under no_grad", "a split under no_grad"])
def test_the_memory_is_writeable_again_when_the_tape_is_released(way: str) -> None:
    w = ag.Parameter([3.0, 1.0, 2.0])
    with ag.Tape() as tape:
        y = w * 2.0
        seen = OFF_THE_TAPE[way](y)
        loss = (y * y).sum()
    tape.backward(loss)
    seen.numpy()[...] = 9.0


def test_an_operation_of_a_user_that_writes_to_its_operand_is_told() -> None:
    def normalised(y: Any) -> Any:
        y -= y.mean()
        return y * 1.0

    operation = primitive(normalised)
    defvjp(operation, lambda ans, y: lambda ct: ct - ct.mean())
    with pytest.raises(ag.SavedArrayError, match="Fix: write to a copy"):
        ag.grad(lambda x: operation(x * 2.0).sum())(numpy.ones(3))


def test_a_copy_that_left_the_tape_is_the_users() -> None:
    w = ag.Parameter([3.0, 1.0, 2.0])
    with ag.Tape() as tape:
        y = w * 2.0
        with ag.no_grad():
            (y + 1.0).numpy()[...] = 9.0
            np.array(y).numpy()[...] = 9.0
        loss = (y * y).sum()
    tape.backward(loss)
    assert numpy.array_equal(w.grad.numpy(), 8 * w.numpy())
