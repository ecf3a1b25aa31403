"""Random calls of every public name with natural mistakes and odd values: no call may end by an internal error.

    python -m tests.fuzz --calls 30000 --seed 1
    python -m tests.fuzz --seed 1 --call 123          # this call of them alone

The names are those of ``__all__`` of every public module: functions, classes, and the methods, properties and operators
of an instance of each class. They are found by introspection, so a new name joins by itself. In most calls one or two
arguments are odd and the others are plausible, by the names of the parameters; in others all are odd, or one is missing
or not known. A call runs without a mesh, under a mesh of size 1, or on two or three ranks that are threads, of which
one may get other arguments. What it returns is used: a pending value is waited for, a function is called, an iterator
is read, a context is entered, and its `repr` is made. The outcomes of one call:

returned   It returns.
refused    It raises a `RingtapeError`. Or an error that is not the library's: one of the pool's own functions, Python's
           own about the arguments of a call or a key, NumPy's for values that NumPy's function of this name refuses.
internal   It raises anything else. Or a warning about a line of the library was seen, or an error in a thread or a
           finalizer.
hang       It has not returned after the limit.
forbidden  It would have written a file outside of the folder of the run, started a process or ended this one.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import inspect
import io
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np

import autograd as ag
import collectives as cc
import parallel
from autograd import data as loaders
from autograd import nn, optim
from autograd.engine.primitive import registry
from autograd.engine.state import outside_mesh, state
from autograd.errors import RingtapeError, is_own_file
from autograd.layouts.rank_values import RankInt
from autograd.random import Key, State, set_state
from collectives import audit
from collectives.page import Page
from collectives.testing import Setting, faults
from parallel import checkpoint, context, elastic, expert, pipeline
from parallel.verify import Compared

ROOT = Path(__file__).resolve().parents[1]

# -- the public names --------------------------------------------------------------------------------------------------
HIPS = ("autograd.builtins", "autograd.core", "autograd.differential_operators", "autograd.test_util",
        "autograd.tracer", "autograd.util", "autograd.wrap_util", "autograd.notebook")  # fmt: skip
"""Modules that programs written for HIPS autograd import, and one that notebooks do."""

OPERATORS = (
    "__call__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__iter__", "__len__", "__bool__",
    "__float__", "__int__", "__index__", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__mul__",
    "__truediv__", "__rtruediv__", "__floordiv__", "__mod__", "__divmod__", "__pow__", "__rpow__", "__matmul__",
    "__rmatmul__", "__and__", "__or__", "__xor__", "__lshift__", "__invert__", "__neg__", "__abs__", "__eq__", "__lt__",
    "__ge__", "__array__", "__format__", "__round__", "__copy__", "__deepcopy__", "__hash__",
)  # fmt: skip

SKIPPED = {
    "autograd.notebook*": "it needs IPython, and is tested with a display of its own",
    "autograd.numpy.random*": "NumPy's own module",
    "collectives.world": "it makes the world of the process, which stays until its end",
    "collectives.World*": "the same; its threads are used by every call that runs on ranks",
    # Interfaces between the layers, on the path of every operation. They get what the layer above has checked.
    "collectives.Communicator*": "transports implement it, and collectives call it",
    "collectives.Collective.[a-z]*": "the dispatch of operations calls these methods; users call the collective itself",
    "autograd.op.[a-z]*": "the same for operations",
    "autograd.extend.Several.[a-z]*": "the same for operations with several results",
    "autograd.*.adopt": "the sweep calls it for a leaf", "autograd.*.accumulate": "the same",
    "autograd.*.labelled": "operations call it for their operands",
    "autograd.Tape.take": "pipelines call it", "autograd.Tape.forward": "forward mode calls it",
    "autograd.core.VJPNode*": "a node of HIPS autograd, which its programs name and do not make",
    "autograd.core.backward_pass": "the same", "autograd.tracer.*": "the same", "autograd.extend.Box*": "the same",
    "autograd.optim.Ada*.update": "`Optimizer.step` calls it", "autograd.optim.LA*.update": "the same",
    "autograd.optim.SGD.update": "the same", "autograd.optim.RMSprop.update": "the same",
    "autograd.optim.Optimizer.update": "the same", "parallel.CompressedAdam.update": "the same",
    "*.update_[a-z]*": "`Optimizer.step` calls it", "*.run_updates": "the same", "*.direction": "the same",
    "*.count_step": "the same", "*.using": "the same", "*.fused": "the same", "*.decoupled": "the same",
    "collectives.Mesh.compare_*": "autograd calls it", "collectives.Mesh.note_*": "the same",
    "collectives.Mesh.examine": "the same", "collectives.Mesh.is_norm_due": "the same",
    "collectives.Mesh.plan": "`Tape.plan` calls it",
    "parallel.Compression.*": "the interface of compressions, which DataParallel calls",
    "parallel.*.factors": "the same", "parallel.NoiseScale.reduce": "the same", "parallel.*.forget": "the same",
    "parallel*.apply": "`parallelize` calls it for a module that it has found", "parallel.Shards*": "the same",
    "collectives.Pending": "started communications make it", "collectives.Call*": "`Mesh.call` makes it",
    "parallel.*.count_sent": "a compression calls it",
    "autograd.Layout": "`Grid.layout` makes it: equal layouts are one object",
    "autograd.nn.FileEntry": "`contents` makes it",
    "autograd.extend.unbroadcast": "rules call it with cotangents", "autograd.extend.ones": "the same",
    "autograd.extend.broadcast": "operations call it with shapes", "autograd.core.Box*": "as `autograd.extend.Box`",
    "parallel.tensor.HeadsAttention*": "`Heads` makes it for `parallelize`",
    "parallel.Explanation.__*": "`Trainer.explain` makes it",
    "autograd.detect_anomaly.see": "the engine calls it with its events",
    "autograd.detect_anomaly.__call__": "the same",
    "*.blocks_of": "the names of files ask it for attributes that they have found",
    "parallel.launch.main": "the command; the tests of its module call it with lines of arguments",
    "parallel.checkpoint.Preemption.exit": "it ends the program",
    "parallel.elastic.Difference*": "`Replicas.check` makes it", "parallel.elastic.Run.*": "`elastic.run` makes it",
    "collectives.testing.faults.Injection*": "`injected` makes it",
    "collectives.testing.faults.Fault*": "the base class of faults",
    "*.stores_transposed": "`parallelize` and the state of modules ask it for names that they have found",
}
"""Patterns of names that are not called, each with the reason."""

RANKS = ("collectives.", "parallel.")
"""The packages whose functions run on ranks, too."""


def modules() -> list[str]:
    """The modules of the reference, which a test of the documentation keeps complete, and those of `HIPS`."""
    tree = ast.parse((ROOT / "docs" / "public_names.py").read_text())
    found = next(
        ast.literal_eval(node.value) for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "MODULES"
    )  # fmt: skip
    return [*found, *HIPS]


def load(name: str) -> Any:
    """Import a module by its public name, which may be an attribute: `autograd.events`."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, last = name.rpartition(".")
        return getattr(importlib.import_module(parent), last)


def is_ours(value: Any) -> bool:
    name = getattr(value, "__module__", None) or type(value).__module__ or ""
    return name.partition(".")[0] in ("autograd", "collectives", "parallel")


@dataclass
class Target:
    """A name that is called. `owner` is the class of the instance whose attribute it is."""

    name: str
    value: Any
    owner: type | None = None
    is_property: bool = False

    def parameters(self) -> list[inspect.Parameter]:
        if self.is_property:
            return []
        try:
            found = list(inspect.signature(self.value).parameters.values())
        except (TypeError, ValueError):
            return [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]
        is_bound = not isinstance(inspect.getattr_static(self.owner, self.name.rpartition(".")[2]), staticmethod
                                  | classmethod) if self.owner else False  # fmt: skip
        return found[1:] if is_bound else found


def targets(with_skipped: bool = False) -> list[Target]:
    """All public callables in alphabetical order of their names, each once, by the first module that has it."""
    found: dict[int, Target] = {}
    for module in modules():
        for name in load(module).__all__:
            value = getattr(load(module), name)
            if id(value) not in found and callable(value) and is_ours(value):
                found[id(value)] = Target(f"{module}.{name}", value)
    members: dict[int, Target] = {}
    for target in list(found.values()):
        if isinstance(target.value, type) and not issubclass(target.value, BaseException):
            for name, value in inspect.getmembers_static(target.value):
                if name.startswith("_") and name not in OPERATORS:
                    continue
                if name == "forward" and issubclass(target.value, nn.Module) and target.value is not nn.Module:
                    name = "__call__"  # its door
                is_property = not callable(value) and not isinstance(value, classmethod | staticmethod)
                function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                known = id(function), target.value if is_property else None
                if (is_property or is_ours(function)) and hash(known) not in members:
                    members[hash(known)] = Target(f"{target.name}.{name}", function, target.value, is_property)
    every = [*found.values(), *members.values()]
    return sorted((t for t in every if with_skipped or not _skipped(t.name)), key=lambda t: t.name)


def _skipped(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in SKIPPED)


# -- values ------------------------------------------------------------------------------------------------------------
class Planted(Exception):
    """The error of a function of the pool: a caller's own, which passes through."""


class Odd:
    """An object of the user's, without anything."""


class Mine(np.ndarray):
    """A class of arrays of the user's, whose product is another one."""

    def __mul__(self, other: Any) -> Any:
        return self


def fails(*args: Any, **words: Any) -> Any:
    raise Planted


def identity(x: Any = 0.0, *args: Any, **words: Any) -> Any:
    return x


def squares(*xs: Any, **words: Any) -> Any:
    return sum((x * x).sum() for x in xs)


@dataclass
class Draw:
    """Draws values. `labels` are those that a Tensor may have on the axis "dp", none without a mesh."""

    random: random.Random
    labels: tuple[Any, ...] = ()
    instances: dict[type, Callable[[Draw], Any]] = field(default_factory=dict)
    given: tuple[Any, ...] = ((), {})
    """The arguments of the call, and those of the function that it returned."""

    @property
    def kinds(self) -> list[type]:
        return sorted(self.instances, key=lambda kind: f"{kind.__module__} {kind.__qualname__}")

    def pick(self, options: Any) -> Any:
        return self.random.choice(options)

    def array(self, shape: Any = None, dtype: Any = None) -> Any:
        shape = self.pick([(4,), (2, 3), (3, 3), (2, 3, 4), (), (0,), (1,)]) if shape is None else shape
        dtype = self.pick(["d", "d", "f", "i8", "?", "D", "e"]) if dtype is None else dtype
        x = np.random.default_rng(self.random.randrange(2**30)).uniform(-2, 2, shape)
        return np.asarray(x.astype(dtype))

    def tensor(self, shape: Any = None, dtype: Any = None) -> Any:
        shape = self.pick([(4,), (2, 3), (3, 3), (2, 3, 4), (), (0,)]) if shape is None else shape
        x = self.array(shape, self.pick(["d", "d", "f", "i8", "D", "e", "?"]) if dtype is None else dtype)
        layout = None
        if self.labels:
            label = self.pick(self.labels)
            layout = {"dp": cc.V if label is cc.R and self.random.random() < 0.3 or not x.ndim and isinstance(
                label, cc.Shard) else label}  # fmt: skip
        is_real = x.dtype.kind in "fc"
        try:
            return ag.tensor(x, layout, requires_grad=is_real and self.random.random() < 0.7)
        except RingtapeError:
            return ag.tensor(x)

    def parameter(self) -> Any:
        return ag.Parameter(self.array(self.pick([(4,), (2, 3), (3, 3)]), self.pick("df")))

    def module(self) -> Any:
        return self.pick([lambda: nn.Linear(3, 2), lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
                          nn.Tanh, lambda: nn.LayerNorm(3)])()  # fmt: skip

    def optimizer(self) -> Any:
        return self.pick([optim.SGD, optim.Adam])([self.parameter(), self.parameter()], lr=0.1)

    def odd(self) -> Any:
        """A natural mistake or an odd value of any kind."""
        kind = self.random.random()
        if kind < 0.2:
            return self.tensor()
        if kind < 0.35:
            return self.array()
        if kind < 0.45 and self.instances:
            with contextlib.suppress(Exception):  # some cannot be made under this mesh
                return self.instances[self.pick(self.kinds)](self)
        chosen = self.random.randrange(len(VALUES) + len(MADE))
        return VALUES[chosen] if chosen < len(VALUES) else MADE[chosen - len(VALUES)](self)


VALUES: tuple[Any, ...] = (
    None, 5, 1.5, -1, 0, 99, -(2**63), 2**70, 1e400, float("nan"), -0.5, -0.0, 1j, True, False, 2**31, 10**400,
    "nope", "", "dp", "x\n\x1b[0m", "\N{SNOWMAN}", "float32", "U3", b"x",
    (), ("dp", "dp"), (0, 0), (1, "x"), (2**40, 2**40), (-1,), (3,), (2, -3), (1, 2, 3), frozenset("a"), range(3),
    slice(None), slice(1, None, 2), ..., cc.R, cc.P, cc.I, cc.V, cc.Shard(0),
    object(), object, int, list, Exception, Odd, Odd(), np, ag, print, len, fails, identity, squares,
    np.sin, np.float64, np.dtype("f4"), np.int64(2), np.float32(0.5), np.bool_(True), np.complex64(1j),
    np.datetime64("2020-01-01"), np.str_("a"),
    ag.numpy.sin, ag.grad, ag.Tensor, nn.Linear, optim.SGD, cc.all_reduce,
)  # fmt: skip
"""Odd values that no call can change."""

MADE: tuple[Callable[[Draw], Any], ...] = (
    lambda d: [], lambda d: {}, lambda d: ["dp"], lambda d: [1, "x"], lambda d: [[1.0], [2.0, 3.0]], lambda d: [None],
    lambda d: {"dp": 1}, lambda d: {"lr": 0.1}, lambda d: {1: 2}, lambda d: {"dp": cc.R}, lambda d: {1, 2},
    lambda d: [0.5, 1.5], lambda d: bytearray(b"ab"), lambda d: memoryview(b"abc"), lambda d: io.StringIO("x"),
    lambda d: (i for i in range(3)), lambda d: iter([]), lambda d: iter([1.0, "x"]), lambda d: lambda: fails(),
    lambda d: np.zeros((0, 3)), lambda d: np.array(1), lambda d: np.array(["a", "b"]), lambda d: np.array([object()]),
    lambda d: np.array([None, 1.0], object), lambda d: np.full(3, np.nan), lambda d: np.array([np.inf, -np.inf]),
    lambda d: np.zeros(3, [("a", "f8")]), lambda d: np.zeros(2, "M8[D]"), lambda d: np.zeros(3, ">f8"),
    lambda d: np.ma.masked_array([1.0, 2.0], [0, 1]), lambda d: np.matrix([[1.0, 2.0]]),
    lambda d: np.ma.masked_array(d.array((2, 3)), True), lambda d: np.ma.masked, lambda d: np.rec.array([(1, 2.0)]),
    lambda d: np.array(["a", "b"], np.dtypes.StringDType()), lambda d: np.zeros(2, "V3"), lambda d: np.void(b"ab"),
    lambda d: np.array(object(), object), lambda d: d.array((3,)).view(Mine), lambda d: np.array(np.nan),
    lambda d: np.array([2**63, 2**64 - 1], np.uint64), lambda d: np.array([-(2**63)]), lambda d: d.array((3,), "G"),
    lambda d: np.array([6e4, -6e4], "e"), lambda d: np.array([1e308, -1e308]), lambda d: np.array(1j, "F"),
    lambda d: np.zeros((3, 0, 2), "D"), lambda d: np.array("2020", "M8[Y]"), lambda d: np.array(b"x"),
    lambda d: ag.tensor(d.array((2, 0))), lambda d: ag.tensor(1j), lambda d: [d.array((3,)), d.array((2,))],
    lambda d: np.broadcast_to(np.float64(1), (2**10, 2**8)), lambda d: np.broadcast_to(1.0, (1,) * 30),
    lambda d: np.random.default_rng(0), lambda d: np.ones((1, 1, 1, 1)), lambda d: Key(0), lambda d: ag.Tape(),
    lambda d: d.parameter(), lambda d: d.module(), lambda d: d.optimizer(), lambda d: [d.tensor(), d.tensor()],
    lambda d: {"w": d.tensor()}, lambda d: (d.parameter(), None), lambda d: [d.array(), d.tensor()],
    lambda d: RankInt(1, ("dp",)) if d.labels else 1, lambda d: ag.Parameter(2.0), lambda d: cc.current_mesh(),
    lambda d: type("Mine", (), {"shape": (2,), "dtype": "f8"})(),
    lambda d: _nested(list, 100), lambda d: _nested(dict, 50), lambda d: _circular(),
)  # fmt: skip
"""Makers of odd values."""


def _nested(kind: type, depth: int) -> Any:
    found: Any = 1.0
    for _ in range(depth):
        found = [found] if kind is list else {"a": found}
    return found


def _circular() -> list[Any]:
    found: list[Any] = [1.0]
    found.append(found)
    return found


def _any_array(d: Draw) -> Any:
    return d.tensor() if d.random.random() < 0.6 else d.array()


def _real(d: Draw) -> Any:
    return d.tensor(d.pick([(4,), (2, 3), (3, 3)]), "d")


def _data() -> Any:
    return loaders.TensorDataset(np.ones((4, 3)), np.arange(4))


def _schedule(d: Draw) -> Any:
    return d.pick([pipeline.gpipe, pipeline.one_f_one_b])(2, 4)


def _path(d: Draw) -> str:
    """The path of a file that may not exist, or be none, or of one that `nn.save` has written, which may be damaged."""
    if d.random.random() < 0.4:
        return d.pick(["fuzz.bin", "fuzz.bin", ".", "fuzz.bin/x.npz", "no/such/x.npz", "/dev/full", "x.safetensors"])
    with outside_mesh():
        nn.save(nn.Linear(3, 2), path := f"saved{cc.world().rank}.{d.pick(['npz', 'safetensors'])}")
    data = bytearray(Path(path).read_bytes())
    for _ in range(d.pick([0, 0, 1, 8])):
        data[d.random.randrange(len(data))] = d.random.randrange(256)
    Path(path).write_bytes(data[: d.pick([len(data), len(data), d.random.randrange(len(data))])])
    return path


_ONE_OF: dict[str, tuple[Any, ...]] = {
    "axis": (0, -1, None, 1), "axes": (0, (0,), None), "dim": (0, -1, None), "dtype": (None, "float32", float),
    "shape": ((2, 3), (4,), 3), "order": ("C", 1), "keepdims causal": (True, False), "name": ("w", "fuzz"),
    "ranks": (1, 2, [1]), "fun f": (lambda *xs: squares(*xs), ag.numpy.sin), "function": (squares,),
    "program adjoint forward maker": (identity,), "bias": (None, True), "to": (cc.R, cc.I), "lr": (0.1,),
    "algorithm": ("native", "ring"), "reduction": ("mean",), "device": (None, "cpu"), "p": (0.5, 2), "q": (0.5, 50),
    "argnum argnums seed root source dest src dst split_dim concat_dim dims rank stage": (0,), "ratio": (0.5,),
    "stride dilation widths step num_groups": (1,), "padding k microbatch": (0, 1), "mode": ("reverse", "ranks"),
    "kernel_size out_features out_channels num_heads nhead experts batch_size": (2,), "layout": ({"dp": cc.V}, None),
    "n in_features normalized_shape num_features input_size in_channels embedding_dim num_channels": (3,),
    "hidden_size hidden": (4,), "num_embeddings": (5,), "embed_dim d_model width extent": (8,), "dx": (1.0,),
    "loss": (lambda m: squares(m(np.ones((2, 3)))),), "microbatches size": (2, 4), "stages": (2, 1),
    "pairs": ([(0, 0)],), "indices": (0, [0, 1]), "state": ({}, None), "group": ("dp",),
    "takes": ([cc.V], (cc.V,)), "gives": (cc.V,), "label": (cc.R, cc.V), "collective": (cc.all_reduce,),
    "global_shape": (None, (4,)), "word": ("N",), "operation": ("sin", "multiply"), "text": ("a",),
    "milestones": ([2, 4],), "out norm costs attention": (None,),
}  # fmt: skip
_MADE: dict[str, Callable[[Draw], Any]] = {
    "x a b args like": _any_array, "input x0": _real, "weight A B": lambda d: d.tensor((3, 3), "d"),
    "query value": lambda d: d.tensor((2, 4, 8), "d"), "xs": lambda d: [d.tensor((3,), "d")],
    "arrays": lambda d: [d.array((3,)), d.tensor((3,))], "array": lambda d: d.array(), "cov": lambda d: np.eye(3),
    "tensor": lambda d: d.pick([d.tensor, d.parameter])(), "tensors": lambda d: [d.tensor()],
    "addends": lambda d: [np.ones(2)], "condition": lambda d: d.array((4,), "?"), "data": lambda d: np.ones((4, 3)),
    "target labels": lambda d: np.array([0, 1]), "batch": lambda d: (np.ones((4, 3)), np.arange(4)),
    "key": lambda d: Key(3, "fuzz"), "params parameters": lambda d: [d.parameter()],
    "optimizer": lambda d: d.optimizer(), "optimizers": lambda d: [d.optimizer()], "tape": lambda d: ag.Tape(),
    "module model objects": lambda d: d.module(), "path file": _path, "modules": lambda d: [d.module()],
    "layers": lambda d: [nn.Tanh(), d.module()],
    "dataset": lambda d: _data(), "schedule": _schedule, "mesh": lambda d: cc.current_mesh(),
}  # fmt: skip
GOOD: dict[str, Callable[[Draw], Any]] = {
    **{name: lambda d, values=values: d.pick(values) for names, values in _ONE_OF.items() for name in names.split()},
    **{name: maker for names, maker in _MADE.items() for name in names.split()},
}
"""Plausible values by the name of a parameter."""

AXES = {"axis", "axes"}  # names of mesh axes in the functions of collectives and parallel


def _needs_mesh(d: Draw, make: Callable[[], Any]) -> Any:
    if not d.labels:
        raise NoInstance
    return make()


def _trained() -> Any:
    model = nn.Linear(3, 2)
    return model, "dp", optim.SGD(model.parameters(), lr=0.1)


def _audited() -> Any:
    """A job of two ranks, and its reference."""
    for folder, size in (("job", 2), ("reference", 1)):
        for rank in range(size):
            audit.write(folder, rank, size, 0, {"w": np.ones(3)}, {"w": np.zeros(3)}, loss=1.0)
    return audit.read_steps("job"), audit.read_steps("reference")


def _board() -> Any:
    """A sink that has written nothing yet, also where its library is not installed."""
    sink: Any = object.__new__(parallel.TensorBoardSink)
    sink.directory, sink._library, sink._writer, sink._count = "board", Mock(), None, 0
    return sink


def _layout() -> Any:
    with cc.Mesh(dp=1):
        return ag.tensor(np.ones(2), {"dp": cc.V}).layout


INSTANCES: dict[Any, Callable[[Draw], Any]] = {
    ag.Tensor: lambda d: d.tensor(), ag.Parameter: lambda d: d.parameter(), ag.Tape: lambda d: ag.Tape(),
    ag.Layout: lambda d: d.tensor().layout or _layout(), ag.extend.VSpace: lambda d: ag.extend.vspace(np.ones(3)),
    nn.Module: lambda d: d.module(), nn.Sequential: lambda d: nn.Sequential(nn.Linear(3, 3), nn.Tanh()),
    nn.ModuleList: lambda d: nn.ModuleList([nn.Tanh(), nn.Linear(3, 3)]),
    nn.ModuleDict: lambda d: nn.ModuleDict({"a": nn.Tanh()}), nn.SelfAttention: lambda d: nn.SelfAttention(4),
    nn.TiedLinear: lambda d: nn.TiedLinear(nn.Embedding(5, 3)),
    nn.FileEntry: lambda d: nn.FileEntry((3,), np.dtype("d"), {}, {"dp": (0, 2)}),
    optim.Optimizer: lambda d: d.optimizer(), optim.SGD: lambda d: optim.SGD([d.parameter()], lr=0.1),
    optim.MasterWeights: lambda d: optim.MasterWeights(optim.SGD, [d.parameter()], lr=0.1),
    optim.Offload: lambda d: optim.Offload(optim.SGD, [d.parameter()], lr=0.1),
    loaders.TensorDataset: lambda d: _data(), loaders.DataLoader: lambda d: loaders.DataLoader(_data(), batch_size=2),
    cc.Mesh: lambda d: cc.Mesh(dp=-1) if d.labels else cc.Mesh(dp=1), cc.Timeline: lambda d: cc.timeline(None),
    audit.Judge: lambda d: audit.Judge(*_audited()), audit.Mesh: lambda d: audit.Mesh({"dp": 2}, [0, 1]),
    audit.Report: lambda d: audit.Judge(*_audited()).report(),
    cc.Show: lambda d: cc.show(), Page: lambda d: Page("<!doctype html>", 0),
    cc.Pending: lambda d: cc.Pending.done(1.0),
    cc.DryRun: lambda d: cc.dry(2, mesh={"dp": 2}), cc.Link: lambda d: cc.Link(1e-6, 1e9),
    cc.Topology: lambda d: cc.Topology(2, cc.Link(1e-6, 1e9), cc.Link(1e-6, 1e9)),
    Setting: lambda d: Setting({"dp": 2, "tp": 2}, ("dp",)),
    parallel.CompressedAdam: lambda d: parallel.CompressedAdam(
        [d.parameter()], parallel.OneBit(momentum=0.9, start_step=1), lr=0.1),
    parallel.LocalSGD: lambda d: parallel.LocalSGD(*_trained(), every=2),
    parallel.DiLoCo: lambda d: parallel.DiLoCo(*_trained(), every=2),
    parallel.ParameterServer: lambda d: parallel.ParameterServer(*_trained()),
    parallel.BackupWorkers: lambda d: parallel.BackupWorkers(*_trained(), needed=1, steps=2),
    parallel.BackupStep: lambda d: parallel.BackupStep(0, (0,), 4.0),
    parallel.BackupReport: lambda d: parallel.BackupReport(2, ((0,), (1,)), ((1,), ()), (4.0, 4.0), (0.0, 4.0)),
    parallel.Report: lambda d: parallel.Report((Compared("w", 1.0, 1.0, 0.0),), 1.0, 1.0, 1e-6, 2),
    parallel.Trainer: lambda d: _needs_mesh(d, lambda: parallel.Trainer(
        lambda: nn.Sequential(nn.Linear(3, 2)), nn.MSELoss(reduction="sum"), cc.current_mesh(),
        optimizer=lambda params: optim.SGD(params, lr=0.1))),
    parallel.RunLog: lambda d: parallel.RunLog("run.jsonl"), parallel.TensorBoardSink: lambda d: _board(),
    context.RingAttention: lambda d: context.RingAttention(nn.SelfAttention(4), "dp"),
    context.UlyssesAttention: lambda d: context.UlyssesAttention(nn.SelfAttention(4), "dp"),
    context.Order: lambda d: context.Order(True, d.pick([True, False])),
    expert.Router: lambda d: expert.Router(8, 2, 1, True),
    pipeline.Pipeline: lambda d: _needs_mesh(d, lambda: pipeline.Pipeline(
        [nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)], nn.MSELoss(reduction="sum"), axis="dp", microbatches=2)),
    pipeline.Simulation: lambda d: pipeline.simulate(_schedule(d)), pipeline.Schedule: _schedule,
    pipeline.Record: lambda d: pipeline.Record(0, [], 0.0, 1.0, 1),
    **{kind: lambda d, kind=kind: kind(0, at=2) for kind in faults.KINDS.values()},
    elastic.Recovery: lambda d: elastic.Recovery({1: "was killed"}, 3, 2, "copies", {"dp": 2}, 0.5),
    checkpoint.Checkpoints: lambda d: checkpoint.Checkpoints("run", keep=2),
    faults.Plan: lambda d: faults.plan(1, ranks=2, operations=5),
}  # fmt: skip
"""Makers of instances; other classes are made by plausible arguments."""


def good(parameter: inspect.Parameter, target: Target, d: Draw) -> Any:
    if parameter.name in AXES and target.name.startswith(RANKS):
        return "dp"
    maker = GOOD.get(parameter.name)
    if maker is not None:
        return maker(d)
    return _any_array(d) if parameter.default is parameter.empty else parameter.default


def instances(found: list[Target]) -> dict[type, Callable[[Draw], Any]]:
    """A maker for each public class that plausible arguments can make."""
    makers = dict(INSTANCES)
    for target in found:
        kind = target.value
        if not isinstance(kind, type) or issubclass(kind, BaseException) or kind in makers:
            continue
        for seed in range(6):
            def make(d: Draw, kind: Any = kind, seed: int = seed, target: Target = target) -> Any:
                own = Draw(random.Random(seed), d.labels)
                given = [p for p in target.parameters() if p.default is p.empty]
                positional = [good(p, target, own) for p in given if p.kind is p.POSITIONAL_OR_KEYWORD]
                return kind(*positional, **{p.name: good(p, target, own) for p in given if p.kind is p.KEYWORD_ONLY})

            try:
                make(Draw(random.Random(0)))
            except Exception:
                continue
            makers[kind] = make
            break
    return makers


# -- one call ----------------------------------------------------------------------------------------------------------
def arguments(target: Target, d: Draw) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of one call."""
    parameters = target.parameters()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    kind = d.random.random()
    chosen = set()
    if kind < 0.8 and parameters:
        chosen = {p.name for p in d.random.sample(parameters, min(len(parameters), 1 if kind < 0.55 else 2))}
    is_all_odd = 0.8 <= kind < 0.92
    given: list[Any] = []
    words: dict[str, Any] = {}
    by_name = False
    for p in named:
        is_odd = is_all_odd or p.name in chosen
        if p.default is not p.empty and not is_odd and d.random.random() < 0.85:
            by_name = True
            continue
        if 0.92 <= kind < 0.95 and d.random.random() < 0.4:  # a missing argument
            by_name = True
            continue
        value = d.odd() if is_odd else good(p, target, d)
        if p.kind is p.KEYWORD_ONLY or (by_name and p.kind is not p.POSITIONAL_ONLY):
            words[p.name] = value
        elif not by_name:
            given.append(value)
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL and not by_name:
            is_odd = is_all_odd or p.name in chosen
            given += [d.odd() if is_odd else good(p, target, d) for _ in range(d.random.randrange(3))]
        if p.kind is p.VAR_KEYWORD and (is_all_odd or p.name in chosen):
            words[d.pick(["axis", "nope", "dim", "out", "x"])] = d.odd()
    if 0.95 <= kind < 0.97:
        given.append(d.odd())
    elif kind >= 0.97:
        words[d.pick(["nope", "axis", "dim", "keepdim", "out"])] = d.odd()
    if target.name.startswith("autograd.numpy"):  # NumPy crashes for some functions and `out` of 0 dimensions
        names = [p.name for p in named]
        crashes = lambda n, x: n == "out" and isinstance(x, np.ndarray) and not x.shape
        given = [None if crashes(n, x) else x for n, x in zip_longest(names[: len(given)], given)]
        words = {n: x for n, x in words.items() if not crashes(n, x)}
    return given, words


def run_one(target: Target, d: Draw) -> Any:
    """Make the arguments and call the target. What it returns is used."""
    if target.owner is None:
        call = target.value
    else:
        name = target.name.rpartition(".")[2]
        maker = d.instances.get(target.owner)
        if maker is None:
            raise NoInstance
        try:
            instance = maker(d)
        except Exception as error:  # it cannot be made under this mesh
            raise NoInstance from error
        if target.is_property:
            if getattr(target.value, "fset", None) is not None and d.random.random() < 0.4:
                setattr(instance, name, d.odd())
            call = lambda: getattr(instance, name)
        else:
            call = getattr(instance, name)
    args, words = arguments(target, d)
    d.given = args, words
    context = ag.Tape() if d.random.random() < 0.4 else contextlib.nullcontext()
    with context:
        use(call(*args, **words), target, d)


class NoInstance(Exception):
    """There is no instance to call a method of."""


def use(found: Any, target: Target, d: Draw) -> None:
    if isinstance(found, cc.Pending):
        found.wait()
    elif isinstance(found, types.FunctionType | types.MethodType) or type(found).__name__ == "partial":
        args = [d.odd() if d.random.random() < 0.5 else _real(d) for _ in range(d.random.randrange(3))]
        d.given = *d.given, args
        found(*args)
    elif hasattr(type(found), "__next__"):
        for _, _item in zip(range(3), found, strict=False):
            pass
    elif isinstance(found, contextlib.AbstractContextManager) and is_ours(found) or isinstance(
        found, contextlib._GeneratorContextManager
    ):
        with found:
            pass
    if is_ours(found):
        repr(found)


# -- the verdict -------------------------------------------------------------------------------------------------------
class Hang(BaseException):
    """The limit of a call has passed."""


class Forbidden(BaseException):
    """What a call may not do."""


FORBIDDEN = ("os.fork", "os.forkpty", "subprocess.Popen", "os.kill", "os.exec", "socket.connect", "os.system")
HERE = __file__


def verdict(error: BaseException, target: Target, given: Any) -> str:
    """The outcome of a call that raised."""
    if isinstance(error, Hang):
        return "hang"
    if isinstance(error, Forbidden):
        return "forbidden"
    if isinstance(error, RingtapeError | Planted | MemoryError | NoInstance):
        return "refused"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_own_file(f.filename) or f.filename == HERE]
    if isinstance(error, Exception) and (not frames or frames[-1].filename == HERE):
        return "refused"  # by Python, before the call began, or by a function of the pool
    if isinstance(error, OSError):  # as of a file that does not exist
        return "refused"
    is_check = target.name.startswith(("autograd.test_util", "autograd.util"))
    if isinstance(error, AssertionError) and str(error) and is_check:
        return "refused"  # it has failed
    last = frames[-1].name
    if last == "called":
        return "refused"  # by a builtin function of the pool that is a primitive
    if isinstance(error, NotImplementedError) and str(error):
        return "refused"  # an abstract method, which names itself
    if last == "of_rank_numbers" or (isinstance(error, Exception) and _numpy_refuses(error, target, given)):
        return "refused"  # NumPy refuses plain values
    called = re.match(r"([\w<>.]+)\(\) (got|takes|missing)", str(error))
    called = called or re.search(r"is an invalid keyword argument for (\w+)\(\)", str(error))
    called = called or re.match(r"(\w+) expected (?:at (?:most|least) )?\d+ arguments?, got", str(error))
    values = (*given[0], *given[1].values())
    names = {target.name.rpartition(".")[2], *(type(x).__name__ for x in values)}
    names |= {name for x in values if isinstance(name := getattr(x, "name", getattr(x, "__name__", "")), str)}
    if called and not names.isdisjoint(called[1].split(".")):
        return "refused"  # Python names the called function, the target or an argument, and the argument
    return "internal"


def _numpy_refuses(error: Exception, target: Target, given: Any) -> bool:
    """Whether NumPy's function of the same name raises the same error for the same arguments."""
    if not target.name.startswith("autograd.numpy") or len(given) != 2:
        return False
    theirs = load_or_none(target.name.removeprefix("autograd."))
    if theirs is None:
        return False
    try:
        theirs(*given[0], **given[1])
    except Exception as other:
        return type(other) is type(error)
    return False


def load_or_none(path: str) -> Any:
    found: Any = np
    for name in path.split(".")[1:]:
        found = getattr(found, name, None)
    return found


@dataclass
class Fault:
    number: int
    kind: str
    name: str
    where: str
    text: str
    error: str

    def __str__(self) -> str:
        return f"{self.kind} (call {self.number}): {self.text}\n    {self.error}\n    at {self.where}"


def site(error: BaseException) -> str:
    """The innermost lines of ours that an error has passed."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_own_file(f.filename)]
    return " < ".join(f"{Path(f.filename).relative_to(ROOT)}:{f.lineno}" for f in reversed(frames[-3:]))


def shown(x: Any) -> str:
    try:
        text = repr(x) if not isinstance(x, np.ndarray) or x.size < 20 else f"<{x.dtype} {x.shape}>"
    except BaseException as error:
        text = f"<{type(x).__name__} whose repr raises {type(error).__name__}>"
    return " ".join(text.split())[:90]


# -- many calls --------------------------------------------------------------------------------------------------------
class Fuzzer:
    """Runs calls in a folder of its own, with everything that one call changes restored before the next."""

    def __init__(self, seed: int, limit_s: float, only: str = ""):
        self.seed, self.limit_s = seed, limit_s
        self.targets = [t for t in targets() if only in t.name]
        self.counts: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.seconds: Counter[str] = Counter()
        self.never_made: set[str] = set()
        self.beside: list[str] = []  # what was seen outside of the call: in threads and finalizers
        self.instances = instances(targets())
        self.random_state = State()
        self.is_guarded = False
        self.limited_in = threading.get_ident()

    def guard(self) -> None:
        """Forbid what a call may not do, limit the memory, and see what happens beside the call."""
        import resource

        folder = os.getcwd()
        with contextlib.suppress(ImportError):
            importlib.import_module("matplotlib.figure")  # where it has no list of fonts yet, it starts a process

        def audit(event: str, args: Any) -> None:
            if not self.is_guarded:
                return
            if event in FORBIDDEN:
                self.is_guarded = False
                raise Forbidden(event)
            if event == "open" and isinstance(args[0], str | bytes) and args[1] and set(str(args[1])) & set("wax+"):
                path = os.path.abspath(os.fsdecode(args[0]))
                if not path.startswith((folder, "/dev/null", "/dev/full", "/dev/shm", tempfile.gettempdir())):
                    raise Forbidden(f"open {path!r}")

        sys.addaudithook(audit)
        sys.unraisablehook = lambda u: self.beside.append(f"unraisable: {u.exc_value!r} in {u.object!r}"[:300])
        threading.excepthook = lambda a: self.beside.append(f"thread: {a.exc_value!r} at {site(a.exc_value)}"[:300])  # type: ignore[arg-type]
        signal.signal(signal.SIGALRM, self._late)
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 3 * 2**30, resource.RLIM_INFINITY))

    def _late(self, *_: Any) -> None:
        raise Hang

    def reset(self) -> None:
        vars(state).clear()
        vars(state).update(self.clean)
        set_state(self.random_state)
        cc.check(self.mode)
        registry.clear()
        registry.update(self.registered)
        os.environ.clear()
        os.environ.update(self.environment)

    def run(self, calls: int, progress: bool = False, alone: int | None = None) -> None:
        self.clean = dict(vars(state))
        self.mode, self.registered = cc.checks.modes.check_mode(), dict(registry)
        self.environment = dict(os.environ)
        order = random.Random(self.seed)
        for number in range(calls):
            if number % len(self.targets) == 0:
                chosen = order.sample(self.targets, len(self.targets))
            if alone is None or number == alone:
                self.one(number, chosen[number % len(self.targets)])
            if progress and number % 1000 == 999:
                print(number + 1, dict(self.counts), file=sys.stderr, flush=True)

    def one(self, number: int, target: Target) -> None:
        chance = random.Random(f"{self.seed} {number}")
        world = chance.random()
        is_shared = target.name.startswith(RANKS)
        begun = time.perf_counter()
        outcomes: list[str] = []

        def call(source: str, labels: tuple[Any, ...]) -> None:
            """One rank's call, which is judged where it was made."""
            d = Draw(random.Random(source), labels, self.instances)
            try:
                run_one(target, d)
                outcomes.append("returned")
            except BaseException as error:
                outcome = verdict(error, target, d.given)
                if isinstance(error, NoInstance):
                    outcome = "not made"
                    self.never_made.add(target.name)
                outcomes.append(outcome)
                if outcome not in ("refused", "not made"):
                    self.note(number, outcome, target, site(error), d, f"{type(error).__name__}: {str(error)[:200]}")
                raise

        labels = (cc.R, cc.P, cc.I, cc.V, cc.Shard(0))

        def rank_main() -> None:
            rank = cc.world().rank
            alone = chance_alone and rank == cc.world().size - 1
            with cc.Mesh(dp=-1):
                call(f"{self.seed} {number} {alone}", labels)

        chance_alone = chance.random() < 0.3
        self.beside.clear()
        with warnings.catch_warnings(record=True) as seen, contextlib.redirect_stdout(io.StringIO()), \
                contextlib.redirect_stderr(io.StringIO()):  # fmt: skip
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", "future versions will not create a writeable")  # as `recording` does
            signal.setitimer(signal.ITIMER_REAL, self.limit_s)
            self.is_guarded = True
            try:
                if is_shared and world < 0.3:
                    cc.run(rank_main, 2 if world < 0.15 else 3)
                elif world < 0.55:
                    with cc.Mesh(dp=1):
                        call(f"{self.seed} {number}", labels)
                else:
                    call(f"{self.seed} {number}", ())
            except Hang as error:
                if not outcomes or "hang" not in outcomes:
                    outcomes.append("hang")
                    self.note(number, "hang", target, site(error), None, "Hang")
            except BaseException as error:
                if not outcomes:
                    outcomes.append("internal")
                    self.note(number, "internal", target, site(error), None, f"outside: {error!r}")
            finally:
                self.is_guarded = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        for warning in seen:
            of_numpy = target.name.startswith(("autograd.numpy", "autograd.scipy", "autograd.Leaf"))
            allowed = RuntimeWarning | RingtapeError  # those of NumPy's numbers, and ours about gradients
            if of_numpy:  # which NumPy's functions of these names give, too
                allowed |= DeprecationWarning | UserWarning
            if is_own_file(warning.filename) and not issubclass(warning.category, allowed):
                where = f"{warning.filename}:{warning.lineno}"
                self.beside.append(f"{warning.category.__name__}: {warning.message} at {where}")
        if self.beside:
            outcomes.append("internal")
            self.note(number, "beside", target, "", None, "; ".join(self.beside))
        worst = [outcome for outcome in ("hang", "forbidden", "internal") if outcome in outcomes]
        self.counts[(worst or outcomes)[0]] += 1
        self.seconds[target.name] += time.perf_counter() - begun  # type: ignore[assignment]
        self.reset()

    def note(self, number: int, kind: str, target: Target, where: str, d: Draw | None, error: str) -> None:
        args, words, *more = d.given if d is not None else ((), {})
        text = ", ".join([*map(shown, args), *(f"{k}={shown(v)}" for k, v in words.items())])
        later = f"({', '.join(map(shown, more[0]))})" if more else ""
        self.faults.append(Fault(number, kind, target.name, where, f"{target.name}({text}){later}", error))


def run(
    calls: int, seed: int, limit_s: float = 60.0, only: str = "", progress: bool = False, alone: int | None = None
) -> Fuzzer:
    """Run calls in this process, which should be one of its own; with `alone`, that call only."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            fuzzer = Fuzzer(seed, limit_s, only)
            fuzzer.guard()
            fuzzer.run(calls, progress, alone)
        finally:
            os.chdir(before)
    return fuzzer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the names to call")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that one call may take")
    parser.add_argument("--call", type=int, help="the number of one call, which is made alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    calls = options.calls if options.call is None else options.call + 1
    fuzzer = run(calls, options.seed, options.limit, options.only, not options.json, options.call)
    if options.json:
        found = {"names": len(fuzzer.targets), "counts": fuzzer.counts, "never_made": sorted(fuzzer.never_made),
                 "faults": [str(fault) for fault in fuzzer.faults]}  # fmt: skip
        print(json.dumps(found))
        return
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in fuzzer.faults:
        groups.setdefault((fault.where.split(" < ")[0], fault.error.split(":")[0]), []).append(fault)
    for found in sorted(groups.values(), key=len):
        print(len(found), sorted({f.name for f in found})[:6], found[0], "", sep="\n")
    print(len(fuzzer.targets), "names", dict(fuzzer.counts), len(groups), "groups")
    print("slowest:", [(name, round(s, 2)) for name, s in fuzzer.seconds.most_common(25)])
    print("never made:", sorted(fuzzer.never_made))


if __name__ == "__main__":
    faulthandler = importlib.import_module("faulthandler")
    faulthandler.enable()
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of calls that hang are left
