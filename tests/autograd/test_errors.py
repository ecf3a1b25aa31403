"""Bad input: each a typed `RingtapeError` that says what was given and what is needed."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import threading
import tomllib
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import _installed, errors, nn, ops, optim
from autograd.engine.primitive import registry
from collectives import I, R, V

from ..forks import run_file


def refused(kind: type, f: Callable[[], Any], *words: str) -> str:
    """`f` raises `kind`, a RingtapeError, whose text holds every one of `words`; the text."""
    with pytest.raises(kind) as error:
        f()
    assert isinstance(error.value, ag.RingtapeError)
    text = str(error.value)
    for word in words:
        assert word in text, f"{word!r} is not in the text:\n{text}"
    return text


def on_every_rank(kind: type, program: Callable[[], Any], ranks: int, *words: str) -> None:
    """Each of the ranks gets the error, and each its text."""

    def guarded() -> str:
        with pytest.raises(kind) as error:
            program()
        assert isinstance(error.value, ag.RingtapeError)
        return str(error.value)

    for rank, text in enumerate(cc.run(guarded, ranks)):
        for word in words:
            assert word in text, f"rank {rank}: {word!r} is not in the text:\n{text}"


# -- what is shown of an error ----------------------------------------------------------------------------------------

MISTAKES = {
    "width": "nn.Sequential(nn.Linear(1, 8), nn.Tanh())(np.ones((3, 2)))",
    "no tape": "(w * w).sum().backward()",
    "product": "np.ones((4, 2)) @ w",
    "no number": "with ag.Tape() as tape: y = w * w\ntape.backward(y)",
    "labels": "nn.cross_entropy(w, np.array([0, 1, 2]))",
    "no list": "optim.SGD(nn.Linear(1, 1).parameters, lr=0.1)",
    "ranks": "cc.run(lambda: np.ones((4, 2)) @ w, 2)",
}
START = """
import sys
import numpy as np
import autograd as ag
import collectives as cc
from autograd import nn, optim
w = ag.Parameter(np.ones((3, 2)))
"""


def printed(file: Path, program: str, **variables: str) -> str:
    """What Python prints of the error that ends a program."""
    file.write_text(program)
    done = run_file(file, limit_s=60, **variables)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_script_prints_the_frames_of_the_program_only(mistake: str, tmp_path: Path) -> None:
    file = tmp_path / "lesson.py"
    text = printed(file, START + MISTAKES[mistake])
    frames = [line for line in text.splitlines() if line.startswith("  File ")]
    assert frames and all("lesson.py" in frame for frame in frames), text
    assert text.count("Traceback") == 1 and "  at lesson.py:" in text and "gufunc" not in text, text
    full = printed(file, START + MISTAKES[mistake], RINGTAPE_TRACEBACK="full")
    assert f"{os.sep}autograd{os.sep}" in full


def test_a_script_prints_the_errors_of_the_program_that_led_to_one(tmp_path: Path) -> None:
    program = "try:\n    {}['key']\nexcept KeyError as error:\n    raise ag.ShapeError('theirs') from error"
    text = printed(tmp_path / "lesson.py", START + program)
    assert "KeyError: 'key'" in text and "direct cause" in text
    text = printed(tmp_path / "lesson.py", START + "{}['key']")
    assert text.count("Traceback") == 1 and "KeyError" in text


def test_a_hook_of_the_program_stays() -> None:
    """The program sets it before it imports the library."""
    hook = "import sys\nsys.excepthook = lambda *given: print('mine', file=sys.stderr)"
    command = [sys.executable, "-c", hook + START + "np.ones(4) @ w"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "mine\n")


class Shell:
    """The parts of IPython's shell that are used. A cell is a file that it knows by its number."""

    cells: dict[str, int]

    def __init__(self) -> None:
        self.compile = self.InteractiveTB = self
        self.cells = {}

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        return ("Cell", f"In[{self.cells[name]}]") if name in self.cells else None

    def structured_traceback(self, kind: type, error: BaseException, trace: Any) -> list[str]:
        assert error.__traceback__ is trace
        return traceback.format_exception(kind, error, trace)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    found = Shell()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: found))
    return found


def test_ipython_shows_the_frames_of_the_program_only(shell: Shell) -> None:
    with pytest.raises(ag.ShapeError) as caught:
        nn.LSTM(3, 4)(numpy.ones((1, 3, 2)))
    text = "".join(caught.value._render_traceback_())
    assert text.count("  File ") == 1 and "test_errors.py" in text and text.count("Traceback") == 1


def test_a_call_site_in_a_notebook_is_a_cell(shell: Shell) -> None:
    w, name = ag.Parameter(numpy.ones((3, 2))), f"{os.sep}tmp{os.sep}847916779.py"
    cell = compile("\n\nnumpy.ones((4, 2)) @ w", name, "exec")
    shell.cells[name] = 16
    assert refused(ag.ShapeError, lambda: exec(cell, {"w": w, "numpy": numpy})).endswith("\n  at Cell In[16], line 3")
    refused(ag.ShapeError, lambda: numpy.ones((4, 2)) @ w, "\n  at test_errors.py:")
    del shell.cells[name]
    refused(ag.ShapeError, lambda: exec(cell, {"w": w, "numpy": numpy}), "\n  at 847916779.py:3")


@pytest.mark.parametrize("kind", [ag.ShapeError, errors.AxisError, errors.MissingKeyError, errors.DependencyError])
def test_an_error_that_ringtape_makes_ends_with_the_line_of_the_program(kind: type[ag.RingtapeError]) -> None:
    def made(text: str) -> ag.RingtapeError:
        """An error that a file of ringtape makes."""
        names: dict[str, Any] = {"kind": kind}
        exec(compile("def make(text): return kind(text)", nn.__file__, "exec"), names)
        error = names["make"](text)
        assert isinstance(error, ag.RingtapeError)
        return error

    error = made("no\x1b; needed: yes")
    assert re.fullmatch(r"no\\x1b; needed: yes\n  at test_errors\.py:\d+", str(error)), str(error)
    assert error.reason == "no\\x1b; needed: yes"
    assert error.args == (str(error),)
    for copy in (made(str(error)), pickle.loads(pickle.dumps(error)), kind(*error.args)):
        assert str(copy) == str(error) and copy.args == error.args  # the line is not added again
    error.extend("\n  fix: it")
    assert re.fullmatch(r"no\\x1b; needed: yes\n  fix: it\n  at test_errors\.py:\d+", str(made(*error.args)))
    assert str(kind("theirs")) == kind("theirs").reason == "theirs"  # of the program itself


def test_reports_warnings_and_other_threads_get_no_line() -> None:
    """A report names the lines of the ranks. Python shows the place of a warning itself."""
    names: dict[str, Any] = {"errors": errors}
    program = (
        "def make(kind, text): return getattr(errors, kind)(text)\ndef run(): found.append(make('ShapeError', 'x'))"
    )
    exec(compile(program, cc.__file__, "exec"), names)
    make: Callable[[str, str], Exception] = names["make"]
    report = "differ:\n  rank 0: all_reduce\n    at model.py:3\n  rank 1: finished"
    assert str(make("CollectiveMismatch", report)) == report
    assert re.fullmatch(r"rank 1 failed\n  at test_errors\.py:\d+", str(make("RankFailed", "rank 1 failed")))
    assert str(make("GradientWarning", "x")) == "x"
    names["found"] = found = []
    thread = threading.Thread(target=names["run"])
    thread.start()
    thread.join()
    assert str(found[0]) == "x"  # no line of a program runs there


@pytest.mark.parametrize("shape, words", [
    ((3, 2), "x of shape (3, 2) has 2 features (its last dimension), needed 1\n  at"),
    ((3,), "x of shape (3,) has 3 features (its last dimension), needed 1\n  fix: x[:, None], a row for each"),
    ((), "x of shape () has no dimensions, needed 1 feature in the last one"),
])  # fmt: skip
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [numpy.ones, lambda shape: ag.tensor(numpy.ones(shape)), lambda shape: numpy.ones(
    shape).tolist()])  # fmt: skip
def test_a_layer_says_what_width_it_needs(shape: tuple[int, ...], words: str, bias: bool, kind: Any) -> None:
    layer = nn.Linear(1, 8, bias=bias)
    for model in (layer, nn.Sequential(layer)):
        with ag.Tape():
            text = refused(ag.ShapeError, lambda model=model: model(kind(shape)), words)
        assert text.startswith("Linear(in_features=1, out_features=8")


@pytest.mark.parametrize("a, b, words", [
    ((4, 2), (3, 2), "the last dimension of x is 2, the first dimension of w 3; needed: the same\n  fix: w.T\n"),
    ((4, 2), (3, 5), "the last dimension of x is 2, the first dimension of w 3; needed: the same\n  at"),
    ((2,), (3,), "the dimension of x is 2, the dimension of w 3; needed: the same\n  at"),
    ((4, 2), (6, 3, 5), "the last dimension of x is 2, the second last dimension of w 3; needed: the same\n  at"),
])  # fmt: skip
def test_a_product_says_which_dimensions_differ(a: Any, b: Any, words: str) -> None:
    refused(ag.ShapeError, lambda: ag.tensor(numpy.ones(a)) @ ag.Parameter(numpy.ones(b)), words)


# -- the tree --------------------------------------------------------------------------------------------------------


def test_every_error_is_a_ringtape_error_with_a_builtin_beside_it_where_there_is_one() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "errors.rst").read_text()
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, ag.RingtapeError)
        assert getattr(ag, name) is kind
        assert kind.__doc__
        assert f"+-- {name} " in page or name == "RingtapeError"
    for kind, builtin in ((ag.ShapeError, ValueError), (ag.DtypeError, TypeError), (ag.SavedArrayError, ValueError),
                          (ag.MeshError, ValueError), (ag.ConflictError, ImportError)):  # fmt: skip
        assert issubclass(kind, builtin)
    for kind in (ag.CollectiveMismatch, ag.DeadlockError, ag.RankFailed, ag.ReplicaMismatch):
        assert issubclass(kind, ag.CommunicationError)


# -- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[1, 2], [True, False]])
def test_requires_grad_of_integers(values: Any) -> None:
    dtype = str(numpy.array(values).dtype)
    refused(ag.DtypeError, lambda: ag.tensor(values, requires_grad=True), dtype, "no derivative", "floating", "Fix: ")
    refused(ag.DtypeError, lambda: ag.Parameter(values), dtype, "floating")
    x = ag.tensor(values)
    refused(ag.DtypeError, lambda: setattr(x, "requires_grad", True), dtype)
    assert not x.requires_grad


def test_differentiating_at_integers() -> None:
    refused(ag.DtypeError, lambda: ag.grad(lambda x: x * x)(2), "int64", "argument 0", "2.0 for 2")
    refused(ag.DtypeError, lambda: ag.jvp(lambda x: x * x, (numpy.array([1]),), (numpy.array([1.0]),)), "int64")
    w = ag.Parameter([1.0])
    with ag.Tape() as tape:
        n = (w > 0).sum()
    refused(ag.DtypeError, lambda: tape.backward(n), "int64", "floating")


def test_arrays_of_objects() -> None:
    refused(ag.DtypeError, lambda: ag.tensor([object()]), "objects", "numbers")


def test_an_optimizer_of_what_cannot_be_learned() -> None:
    refused(ag.DtypeError, lambda: optim.SGD([ag.tensor([1])], lr=0.1), "int64", "floating")
    refused(ag.ShapeError, lambda: optim.SGD([], lr=0.1), "no parameters", "model.parameters()")
    refused(ag.RingtapeError, lambda: optim.SGD([numpy.ones(1)], lr=0.1), "ndarray", "Parameters")


def test_labels_of_cross_entropy() -> None:
    logits = numpy.zeros((2, 3))
    refused(ag.ShapeError, lambda: ops.cross_entropy(logits, numpy.array([0, 3])), "0..2", "3")
    refused(ag.ShapeError, lambda: ops.cross_entropy(ag.tensor(logits), ag.tensor([0, 7])), "0..2", "7")
    refused(ag.ShapeError, lambda: ops.cross_entropy(logits, numpy.array([0, -1])), "0..2", "-1")
    refused(ag.ShapeError, lambda: ops.cross_entropy(logits, numpy.array([0])), "(2, 3)", "(1,)", "[n, classes]")
    refused(ag.ShapeError, lambda: ops.cross_entropy(logits[0], numpy.array([0])), "(3,)", "[n, classes]")
    refused(ag.DtypeError, lambda: ops.cross_entropy(logits, numpy.array([0.0, 1.0])), "float64", "integers")


def test_numpy_functions_that_have_no_derivative() -> None:
    x = ag.tensor([1.0, 2.0], requires_grad=True)
    with ag.Tape():
        refused(ag.NotDifferentiable, lambda: numpy.nextafter(x, x), "nextafter", "Fix: ")
        refused(ag.NotDifferentiable, lambda: numpy.add.reduceat(x, [0]), "add.reduceat", "Fix: ")


# -- shapes ----------------------------------------------------------------------------------------------------------


def test_bad_shapes() -> None:
    x = ag.tensor(numpy.ones((2, 3)))
    refused(ag.ShapeError, lambda: x.reshape(4, 2), "(2, 3)", "(4, 2)", "6 elements")
    refused(ag.ShapeError, lambda: x.reshape(-1, 4), "(2, 3)", "(-1, 4)", "-1")
    refused(ag.ShapeError, lambda: x.reshape(-1, -1), "-1")
    refused(ag.ShapeError, lambda: np.transpose(x, (0, 0)), "(0, 0)", "each dimension once")
    refused(ag.ShapeError, lambda: x.sum(axis=2), "axis 2", "2 dimensions")
    refused(ag.ShapeError, lambda: x.mean(axis=(0, -3)), "axis -3")
    refused(ag.ShapeError, lambda: np.squeeze(x, 0), "axis 0", "(2, 3)", "extent 1")
    refused(ag.ShapeError, lambda: np.concatenate([]), "no arrays")
    refused(ag.ShapeError, lambda: np.concatenate([x, ag.tensor([1.0])]), "(2, 3)", "(1,)")
    refused(ag.ShapeError, lambda: ops.softmax(x, 2), "axis 2", "2 dimensions")
    refused(ag.ShapeError, lambda: ops.logsumexp(ag.tensor(1.0)), "0 dimensions")


@pytest.mark.parametrize("f", [
    lambda: ag.tensor(numpy.ones((2, 3))) + ag.tensor(numpy.ones((2, 2))),
    lambda: ag.tensor(numpy.ones((2, 3))) @ ag.tensor(numpy.ones((2, 3))),
    lambda: ag.tensor(numpy.ones((2, 3))) * numpy.ones(2),
    lambda: np.broadcast_to(ag.tensor(numpy.ones(3)), (2, 2)),
    lambda: np.concatenate([ag.tensor(numpy.ones((2, 3))), ag.tensor(numpy.ones((2, 2)))]),
    lambda: np.max(ag.tensor(numpy.ones(0))),
    lambda: ag.tensor(numpy.ones(3)) @ 2.0,
], ids=["add", "matmul", "multiply", "broadcast_to", "concatenate", "max of nothing", "of a number"])  # fmt: skip
def test_what_numpy_refuses_is_a_value_error(f: Callable[[], Any]) -> None:
    """NumPy's own words name the shapes; nothing wraps an operation's call for them."""
    with pytest.raises(ValueError):
        f()


def test_bad_cotangents() -> None:
    w = ag.Parameter([1.0, 2.0])
    with ag.Tape() as tape:
        y = w * 2
    refused(ag.ShapeError, lambda: tape.backward(y), "(2,)", "without a cotangent", "sum it", "test_errors.py:")
    refused(ag.ShapeError, lambda: tape.backward(y, numpy.ones(3)), "(3,)", "(2,)")
    refused(ag.ShapeError, lambda: tape.backward(y, numpy.ones((2, 1))), "(2, 1)", "(2,)")
    refused(ag.ShapeError, lambda: tape.backward([y], [numpy.ones(2), numpy.ones(2)]), "2 cotangents", "1 outputs")
    refused(ag.ShapeError, lambda: ag.grad(lambda x: x * 2)(numpy.ones(2)), "(2,)", "one number", "vjp")
    refused(ag.ShapeError, lambda: ag.jvp(lambda x: x, (numpy.ones(2),), (numpy.ones(3),)), "(3,)", "(2,)")
    refused(ag.ShapeError, lambda: ag.jvp(lambda x: x, (numpy.ones(2),), ()), "0 tangents", "1 argument")
    refused(ag.RingtapeError, lambda: ag.vjp(lambda x: x * 2, numpy.ones(2))[1](numpy.ones(5)), "(5,)", "(2,)")
    assert w.grad is None
    tape.backward(y, numpy.ones(2))
    assert w.grad is not None


def test_replacing_a_parameters_value() -> None:
    w = ag.Parameter([1.0, 2.0])
    refused(ag.ShapeError, lambda: setattr(w, "data", numpy.ones(3)), "(3,)", "(2,)")
    model = nn.Linear(2, 1)
    missing = {"weight": numpy.ones((2, 1))}
    refused(ag.ShapeError, lambda: model.load_state_dict(missing), 'Missing key(s) in state_dict: "bias"')
    wrong = {"weight": numpy.ones((3, 1)), "bias": numpy.ones(1)}
    refused(ag.ShapeError, lambda: model.load_state_dict(wrong), "weight", "(3, 1)", "(2, 1)")


# -- tapes -----------------------------------------------------------------------------------------------------------


def test_backward_of_nothing() -> None:
    x = ag.tensor([1.0])
    with ag.Tape() as tape:
        y = (x * 2).sum()
    refused(ag.TapeError, lambda: tape.backward(y), "depends on no leaf", "requires_grad=True", "test_errors.py:")
    refused(ag.TapeError, y.backward, "depends on no leaf", "Parameter")
    refused(ag.TapeError, lambda: ag.Tape().backward(y), "never entered")
    refused(ag.TapeError, lambda: tape.backward(3.0), "float")
    refused(ag.TapeError, lambda: ag.grad(lambda x: "text")(1.0), "str", "one number")


def test_second_backward() -> None:
    w = ag.Parameter([1.0])
    with ag.Tape() as tape:
        loss = (w * w).sum()
    tape.backward(loss)
    refused(ag.TapeError, lambda: tape.backward(loss), "second backward", "released", "retain=True", "test_errors.py:")


def test_backward_on_another_tape() -> None:
    w = ag.Parameter([1.0])
    with ag.Tape():
        loss = (w * w).sum()
    with ag.Tape() as other:
        (w * 2).sum()
    refused(ag.TapeError, lambda: other.backward(loss), "another tape", "this one")


def test_forward_mode_over_a_released_tape() -> None:
    w = ag.Parameter([1.0])
    with ag.Tape() as tape:
        x = tape.watch(w)
        y = (x * x).sum()
    tape.backward(y)
    refused(ag.TapeError, lambda: tape.forward([x], [numpy.ones(1)], [y]), "released", "retain=True")


def test_writing_to_a_saved_array() -> None:
    w = ag.Parameter([1.0])
    with ag.Tape() as tape:
        loss = (w * w).sum()

    def write() -> None:
        w.data[0] = 3.0

    refused(ag.SavedArrayError, write, "assignment", "(1,)", "backward", "Fix: ")
    tape.backward(loss)
    write()


def test_a_module_without_forward() -> None:
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        nn.Module()(1)


# -- meshes and axes -------------------------------------------------------------------------------------------------


def test_a_collective_without_a_mesh() -> None:
    x = ag.tensor([1.0])
    for f in (cc.all_reduce, cc.all_gather, cc.reduce_scatter, cc.cast, cc.shard, cc.broadcast, cc.reduce, cc.mean,
              cc.scatter, cc.gather, cc.declare_partial):  # fmt: skip
        refused(ag.MeshError, lambda f=f: f(x, "dp"), "no mesh is current", "cc.Mesh(")
    refused(ag.MeshError, lambda: cc.recv("dp", 0), "no mesh is current")
    refused(ag.MeshError, lambda: ag.tensor([1.0], {"dp": R}), "without a mesh", "cc.Mesh(")


def test_an_unknown_axis() -> None:
    with cc.Mesh(dp=1, tp=1) as mesh:
        x = ag.tensor([1.0])
        for f in (cc.all_reduce, cc.all_gather, cc.cast, cc.broadcast):
            refused(ag.MeshError, lambda f=f: f(x, "pp"), "'pp'", "'dp', 'tp'")
        refused(ag.MeshError, lambda: cc.all_reduce(x, ("dp", "pp")), "'pp'")
        refused(ag.MeshError, lambda: cc.all_reduce(x, ("dp", "dp")), "each axis once")
        refused(ag.MeshError, lambda: cc.all_reduce(x, ()), "at least one")
        refused(ag.MeshError, lambda: mesh.axis("pp"), "'pp'")
        refused(ag.MeshError, lambda: ag.tensor([1.0], {"pp": R}), "'pp'", "'dp', 'tp'")


@pytest.mark.parametrize("sizes, words", [
    ({"dp": 2}, ["dp=2", "world of 3 ranks"]),
    ({"dp": 2, "tp": 2}, ["dp=2, tp=2", "world of 3 ranks", "start 4 ranks"]),
    ({"dp": -1, "tp": 2}, ["dp=-1, tp=2", "world of 3 ranks"]),
    ({"dp": 0}, ["dp=0", "positive"]),
    ({"dp": -1, "tp": -1}, ["at most one -1"]),
    ({"dp": -2}, ["dp=-2", "positive"]),
    ({"dp": 1.5}, ["dp=1.5", "integers"]),
    ({}, ["no axes", "Mesh(dp=-1)"]),
])  # fmt: skip
def test_a_mesh_that_does_not_divide_the_world(sizes: Any, words: list[str]) -> None:
    on_every_rank(ag.MeshError, lambda: cc.Mesh(**sizes), 3, *words)


def test_a_root_out_of_range() -> None:
    def program(f: Any) -> Any:
        def called() -> None:
            with cc.Mesh(dp=3):
                f(ag.tensor(numpy.ones(3)))

        return called

    for f in (lambda x: cc.broadcast(x, "dp", root=3), lambda x: cc.reduce(x, "dp", root=-1),
              lambda x: cc.scatter(x, "dp", root=5), lambda x: cc.gather(x, "dp", root=3)):  # fmt: skip
        on_every_rank(ag.MeshError, program(f), 3, "root=", "'dp'", "ranks 0 to 2", "test_errors.py:")
    on_every_rank(ag.MeshError, program(lambda x: cc.broadcast(x, "dp", root=1.0)), 3, "root=1.0")
    on_every_rank(ag.MeshError, program(lambda x: cc.send(x, "dp", 3)), 3, "dst=3", "ranks 0 to 2")
    on_every_rank(ag.MeshError, program(lambda x: cc.send(x, "dp", cc.world().rank)), 3, "this rank itself")
    on_every_rank(ag.MeshError, program(lambda x: cc.recv("dp", cc.world().rank)), 3, "this rank itself")
    on_every_rank(ag.MeshError, program(lambda x: cc.permute(x, "dp", [(0, 3)])), 3, "ranks 0 to 2")
    on_every_rank(ag.MeshError, program(lambda x: cc.permute(x, "dp", [(0, 1), (0, 2)])), 3, "source twice")
    on_every_rank(ag.MeshError, program(lambda x: cc.permute(x, "dp", [(0, 1), (2, 1)])), 3, "destination twice")


def test_words_that_a_collective_does_not_know() -> None:
    with cc.Mesh(dp=1):
        x = ag.tensor(numpy.ones((2, 2)))
        refused(ag.LayoutError, lambda: cc.all_reduce(x, "dp", to=V), "to=V", "to=R or to=I")
        refused(ag.LayoutError, lambda: cc.cast(x, "dp", to="R"), "to='R'")
        refused(ag.ShapeError, lambda: cc.all_gather(x, "dp", dim=2), "2")
        refused(ag.ShapeError, lambda: cc.all_to_all(x, "dp", 1, 1, counts=[3]), "counts=[3]", "sum to 2")
        refused(ag.ShapeError, lambda: cc.all_to_all(x, "dp", 0, 1, counts=[2]), "split_dim == concat_dim")
        refused(ag.ShapeError, lambda: cc.all_reduce(None, "dp"), "None")


def test_operands_of_another_mesh() -> None:
    with cc.Mesh(dp=1):
        x = ag.tensor([1.0], {"dp": R})
    with cc.Mesh(tp=1):
        y = ag.tensor([1.0], {"tp": R})
        refused(ag.LayoutError, lambda: x + y, "two meshes", "{dp: R}", "{tp: R}")
        refused(ag.LayoutError, lambda: cc.all_gather(cc.cast(y, "tp", to=V), "tp") * x, "two meshes")
        refused(ag.LayoutError, lambda: cc.all_reduce(x, "tp"), "another mesh", "{dp: R}", "Mesh(tp=1)")


def test_a_mesh_of_another_thread() -> None:
    mesh = cc.Mesh(dp=1)

    def program() -> None:
        with mesh:
            pass

    with pytest.raises(ag.MeshError, match="another thread.*inside run"):
        cc.run(program, 1)


# -- ranks that do not make the same call ----------------------------------------------------------------------------


def mismatch(f: Callable[[int], Any], *words: str, ranks: int = 3) -> None:
    def program() -> None:
        with cc.Mesh(dp=ranks) as mesh, ag.Tape():
            f(int(mesh.axis("dp").rank))

    on_every_rank(ag.CollectiveMismatch, program, ranks, *words)


def test_shapes_that_differ_between_ranks() -> None:
    mismatch(lambda r: cc.all_reduce(ag.tensor(numpy.ones(2 + (r == 1))), "dp"), "rank 1", "shape=[2]", "shape=[3]",
             "all_reduce", "axis='dp'", "needed: the same call")  # fmt: skip
    mismatch(lambda r: cc.all_reduce(ag.tensor(numpy.ones((2, 3)[:: -1 if r == 2 else 1])), "dp"), "rank 2",
             "shape=[3,2]")  # fmt: skip
    mismatch(lambda r: cc.reduce(ag.tensor(numpy.ones(2 + r)), "dp"), "shape=[2]", "shape=[4]")


def test_dtypes_that_differ_between_ranks() -> None:
    mismatch(lambda r: cc.all_reduce(ag.tensor(numpy.ones(2, "f4" if r == 2 else "f8")), "dp"), "rank 2", "float32",
             "float64")  # fmt: skip
    mismatch(lambda r: cc.all_gather(ag.tensor(numpy.ones(2, "f4" if r == 2 else "f8")), "dp"), "float32")


def test_calls_that_differ_between_ranks() -> None:
    x = numpy.ones(3)
    mismatch(lambda r: cc.all_gather(ag.tensor(x), "dp") if r == 0 else cc.all_reduce(ag.tensor(x), "dp"), "rank 0",
             "all_gather", "all_reduce")  # fmt: skip
    mismatch(lambda r: cc.broadcast(ag.tensor(x), "dp", root=int(r == 1)), "rank 1", "root=0", "root=1")
    mismatch(lambda r: cc.all_reduce(ag.tensor(x), "dp", to=I if r == 0 else R), "rank 0", "to=I", "to=R")


def test_a_recording_that_differs_between_ranks() -> None:
    def call(r: int) -> None:
        x = ag.tensor(numpy.ones(2))
        if r == 1:
            with ag.no_grad():
                cc.all_reduce(x, "dp")
        else:
            cc.all_reduce(x, "dp")

    mismatch(call, "rank 1", "not recorded", "recorded")


def test_a_rank_that_fails_is_named() -> None:
    def program() -> None:
        with cc.Mesh(dp=3) as mesh:
            if mesh.axis("dp").rank == 1:
                raise ZeroDivisionError("on purpose")
            cc.all_reduce(ag.tensor([1.0]), "dp")

    with pytest.raises(ZeroDivisionError) as error:
        cc.run(program, 3)
    assert any("rank 1" in note for note in error.value.__notes__)


def test_a_value_read_where_it_is_absent() -> None:
    def program() -> Any:
        with cc.Mesh(dp=3) as mesh:
            y = cc.reduce(ag.tensor([1.0]), "dp", root=1)
            if mesh.axis("dp").rank == 1:
                return y.item()
            assert y.absent and y.data is None and y.shape == (1,)
            for read in (y.numpy, y.item, lambda: float(y), lambda: y.numpy()[0], lambda: numpy.asarray(y)):
                refused(ag.AbsentError, read, "rooted", "rank 1", "'dp'")
            assert "absent" in repr(y)
            return None

    assert cc.run(program, 3) == [None, 3.0, None]


# -- an old NumPy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.26.4", "2.0.2", "2.1.0", "2.1.1rc1", "2.1"])
def test_old_numpy(version: str) -> None:
    refused(ag.DependencyError, lambda: _installed.refuse_old_numpy(version), version, "pip install 'numpy>=2.1.2'")


@pytest.mark.parametrize("version", ["2.1.2", "2.2.0rc1", "2.4.0.dev0+git20251107", "3.0.0", numpy.__version__])
def test_new_numpy(version: str) -> None:
    _installed.refuse_old_numpy(version)


def test_the_lowest_numpy_is_that_of_the_distribution() -> None:
    with (Path(__file__).parents[2] / "pyproject.toml").open("rb") as file:
        needed = tomllib.load(file)["project"]["dependencies"]
    assert "numpy>=" + ".".join(map(str, _installed._NUMPY)) in needed


def test_promotion_in_threads() -> None:
    """What the lowest version is about: NumPy 2.1.0 divides a float32 in a thread to a float64."""
    assert cc.run(lambda: (numpy.float32(1) / 3).dtype, 2) == [numpy.float32] * 2


# -- the other owner of the package's name ---------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["autograd-1.8.0.dist-info", "autograd-1.7.0-py3.11.egg-info"])
def test_hips_autograd_installed_beside(tmp_path: Path, folder: str) -> None:
    (tmp_path / "autograd_gamma-0.5.0.dist-info").mkdir()
    _installed.refuse_two_owners(str(tmp_path))
    (tmp_path / folder).mkdir()
    refused(ag.ConflictError, lambda: _installed.refuse_two_owners(str(tmp_path)), folder.rsplit(".", 1)[0],
            "HIPS autograd", str(tmp_path), "pip uninstall autograd", "Both it and ringtape")  # fmt: skip
    _installed.refuse_two_owners(str(tmp_path / "no such folder"))


def test_importing_beside_hips_autograd(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    (site / "autograd-1.8.0.dist-info").mkdir(parents=True)
    root = str(Path(ag.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, str(site)])}
    command = [sys.executable, "-c", "import autograd"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "ConflictError" in done.stderr and "pip uninstall autograd" in done.stderr


# -- nothing else leaks out ------------------------------------------------------------------------------------------


def test_errors_point_at_the_users_line() -> None:
    with cc.Mesh(dp=1):
        x, w = ag.tensor([1.0], {"dp": V}), ag.Parameter([1.0])
        text = refused(ag.LayoutError, lambda: np.exp(x) + w, "add(")
        line = int(text.rsplit("test_errors.py:", 1)[1])
        source = Path(__file__).read_text().splitlines()[line - 1]
        assert "np.exp(x) + w" in source
    assert "add" in registry


@pytest.mark.parametrize("name", ["jacfwd", "jacrev", "jit", "pmap", "vmap"])
def test_names_of_jax_say_what_to_use(name: str) -> None:
    with pytest.raises(AttributeError, match=f"^module 'autograd' has no attribute '{name}'. Use [a-z]"):
        getattr(ag, name)
    with pytest.raises(AttributeError, match="^module 'autograd' has no attribute 'mapped'$"):
        ag.mapped  # noqa: B018 - it raises


@pytest.mark.parametrize("name", ["PRNGKey", "fold_in", "key", "split"])
def test_names_of_jaxs_random_numbers_say_what_to_use(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'autograd.random' has no attribute '{name}'. Use (random.K|k)ey"):
        getattr(ag.random, name)


def test_a_number_that_is_folded_into_a_key() -> None:
    for key in (ag.random.Key(0), ag.random.Key(0, "layer")):
        with pytest.raises(ag.DtypeError, match=r"got 3\n  fix: key.at\(3\) .*as fold_in of JAX"):
            key.fold(3)


FRAMES = """
import gc, sys, threading
from autograd import errors

frames, event, inside, collected = sys._current_frames, threading.Event(), [], []

def marked():
    inside.append(True)
    try:
        return frames()
    finally:
        inside.clear()

def note(phase, info):
    collected.extend([phase] * bool(inside))

threads = [threading.Thread(target=event.wait) for _ in range(30)]
for thread in threads:
    thread.start()
before = gc.get_threshold()
sys._current_frames = marked
gc.callbacks.append(note)
gc.set_threshold(5, 1, 1)
found = marked() if sys.argv[1:] else errors.frames_of_threads()
gc.set_threshold(*before)
event.set()
for thread in threads:
    thread.join()
print({thread.ident for thread in threads} <= set(found), bool(collected), gc.isenabled())
"""


@pytest.mark.skipif(sys.version_info >= (3, 11, 9), reason="this Python collects no garbage in sys._current_frames")
@pytest.mark.parametrize("planted", [False, True])
def test_no_garbage_is_collected_while_the_frames_of_threads_are_found(planted: bool) -> None:
    """A finalizer that runs then can stop all threads for ever, so that a process of its own runs the planted fault.

    See `frames_of_threads`.
    """
    command = [sys.executable, "-c", FRAMES, *["planted"] * planted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["True", str(planted), "True"], done


WALK = """
import gc, sys, threading
from autograd import errors

frames, event, inside, collected = sys._current_frames, threading.Event(), [], []

def deep(n):
    deep(n - 1) if n else event.wait()

def marked():
    inside.append(True)
    return frames()

def walked(frame):
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found

thread = threading.Thread(target=deep, args=(50,))
thread.start()
before = gc.get_threshold()
sys._current_frames = marked
gc.callbacks.append(lambda phase, info: collected.extend([phase] * bool(inside)))
gc.set_threshold(5, 1, 1)
found = walked(marked()[thread.ident]) if sys.argv[1:] else errors.frames_of_thread(thread.ident)
gc.set_threshold(*before)
event.set()
thread.join()
print(len(found) > 50, bool(collected), gc.isenabled())
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python collects no garbage where it makes a frame")
@pytest.mark.parametrize("planted", [False, True])
def test_no_garbage_is_collected_while_the_frames_of_a_thread_are_found(planted: bool) -> None:
    """A finalizer that runs then lets the thread return from the frame that is asked, and the process may crash."""
    command = [sys.executable, "-c", WALK, *["planted"] * planted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["True", str(planted), "True"], done


def test_frames_of_threads_are_found_in_one_place() -> None:
    """Where garbage may be collected, a rank that looks at the others' frames stops all of them for ever."""
    root = Path(ag.__file__).parents[1]
    files = [file for package in ("autograd", "collectives", "parallel") for file in (root / package).rglob("*.py")]
    found = [file.name for file in files if "_current_frames" in file.read_text()]
    assert found == ["errors.py"]


def test_all_errors_name_the_line() -> None:
    """The base class adds it, so no class makes its text itself; Python shows the place of a warning."""
    kinds = [ag.RingtapeError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        assert kind.__init__ is ag.RingtapeError.__init__, kind
        assert kind._has_line is not issubclass(kind, Warning), kind
    assert len(kinds) > 30
