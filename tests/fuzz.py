"""Random calls of every public name with natural mistakes and odd values: no call may end by an internal error.

    python -m tests.fuzz --calls 30000 --seed 1

The names are those of ``__all__`` of every public module: functions, classes, and the methods, properties and operators
of an instance of each class. They are found by introspection, so a new name joins by itself. In most calls one argument
is odd and the others are plausible, by the names of the parameters; in others two or all of them are odd, or one is
missing or not known. A call runs without a mesh, under a mesh of size 1, or on two or three ranks that are threads. What
it returns is used: a pending value is waited for, a function is called, an iterator is read, a context is entered, and
its `repr` is made. The outcomes of one call:

returned   It returns.
refused    It raises a `RingtapeError`, or an error of the pool's own functions, or Python refuses its arguments before
           it begins, or NumPy's function of the same name refuses the same arguments with the same error.
internal   It raises anything else; or a warning about our code, or an error in a thread or a finalizer, was seen.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
import parallel
from autograd import data as loaders
from autograd import nn, optim
from autograd.engine.primitive import registry
from autograd.engine.state import state
from autograd.errors import RingtapeError, is_own_file
from autograd.layouts.rank_values import RankInt
from autograd.random import Key, State, set_state
from collectives.testing import Setting
from parallel import Report, context, expert, pipeline
from parallel.context import Order
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
    "collectives.Mesh.compare_step": "`Optimizer.step` calls it", "collectives.Mesh.plan*": "`Tape.plan` calls it",
    "parallel.Compression.*": "the interface of compressions, which DataParallel calls",
    "parallel.*.factors": "the same", "parallel.NoiseScale.reduce": "the same", "parallel.*.forget": "the same",
    "parallel*.apply": "`parallelize` calls it for a module that it has found", "parallel.Shards*": "the same",
    "collectives.Pending": "started communications make it", "collectives.Call*": "`Mesh.call` makes it",
    "parallel.*.count_sent": "a compression calls it",
    "autograd.Layout": "`Grid.layout` makes it, one object for equal layouts", "autograd.nn.FileEntry": "`contents` does",
    "autograd.extend.unbroadcast": "rules call it with cotangents", "autograd.extend.ones": "the same",
    "autograd.extend.broadcast": "operations call it with shapes", "autograd.core.Box*": "as `autograd.extend.Box`",
    "parallel.tensor.HeadsAttention*": "`Heads` makes it for `parallelize`",
    "parallel.Explanation.__*": "`Trainer.explain` makes it",
    "autograd.nn.load": "files, damaged ones too, are those of the tests of saving", "autograd.nn.contents": "the same",
    "*.hear": "the engine calls it with its events", "autograd.detect_anomaly.see": "the same",
    "autograd.detect_anomaly.__call__": "the same",
    "*.stores_transposed": "`parallelize` and the state of modules ask it for names that they have found",
    "*.__reduce__": "`pickle` and `copy` call it",
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


def targets() -> list[Target]:
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
    return sorted((t for t in every if not _skipped(t.name)), key=lambda t: t.name)


def _skipped(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in SKIPPED)


# -- values ------------------------------------------------------------------------------------------------------------
class Planted(Exception):
    """The error of a function of the pool: a caller's own, which passes through."""


class Odd:
    """An object of the user's, without anything."""


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
                return self.instances[self.pick(sorted(self.instances, key=lambda c: c.__qualname__))](self)
        return self.pick(ODD)(self)


ODD: list[Callable[[Draw], Any]] = [
    *(lambda d, value=value: value for value in (
        None, 5, 1.5, -1, 0, 99, -(2**63), 2**70, 1e400, float("nan"), -0.5, 1j, True, False, "nope", "", "dp", "x\n\x1b[0m",
        "\N{SNOWMAN}", b"x", (), ("dp", "dp"), (0, 0), (1, "x"), slice(None), slice(1, None, 2), ...,
        cc.R, cc.P, cc.I, cc.V, cc.Shard(0), object(), object, int, list, Exception, np.float64, np.dtype("f4"),
        "float32", "U3", print, len, np.sin, fails, identity, squares, Odd, Odd(), np, ag, frozenset("a"), range(3),
        np.int64(2), np.float32(0.5), np.bool_(True), np.complex64(1j), np.datetime64("2020-01-01"), np.str_("a"),
        ag.numpy.sin, ag.grad, ag.Tensor, nn.Linear, optim.SGD, cc.all_reduce, cc.add if hasattr(cc, "add") else None,
        (2**40, 2**40), 2**31, (-1,), (3,), (2, -3), (1, 2, 3), 10**400, -0.0,
    )),
    lambda d: [], lambda d: {}, lambda d: ["dp"], lambda d: [1, "x"], lambda d: [[1.0], [2.0, 3.0]], lambda d: {"dp": 1},
    lambda d: {"lr": 0.1}, lambda d: {1: 2}, lambda d: {"dp": cc.R}, lambda d: [None], lambda d: {1, 2},
    lambda d: [0.5, 1.5], lambda d: bytearray(b"ab"), lambda d: memoryview(b"abc"), lambda d: io.StringIO("x"),
    lambda d: (i for i in range(3)), lambda d: iter([]), lambda d: iter([1.0, "x"]),
    lambda d: np.zeros((0, 3)), lambda d: np.array(1), lambda d: np.array(["a", "b"]), lambda d: np.array([object()]),
    lambda d: np.array([None, 1.0], object), lambda d: np.full(3, np.nan), lambda d: np.array([np.inf, -np.inf]),
    lambda d: np.zeros(3, [("a", "f8")]), lambda d: np.zeros(2, "M8[D]"), lambda d: np.ma.masked_array([1.0, 2.0], [0, 1]),
    lambda d: np.matrix([[1.0, 2.0]]), lambda d: np.broadcast_to(np.float64(1), (2**11, 2**10)), lambda d: np.zeros(3, ">f8"),
    lambda d: np.random.default_rng(0), lambda d: np.broadcast_to(1.0, (1,) * 30), lambda d: np.ones((1, 1, 1, 1)),
    lambda d: d.parameter(), lambda d: d.module(), lambda d: d.optimizer(), lambda d: [d.tensor(), d.tensor()],
    lambda d: {"w": d.tensor()}, lambda d: (d.parameter(), None), lambda d: [d.array(), d.tensor()], lambda d: Key(0),
    lambda d: ag.Tape(), lambda d: RankInt(1, ("dp",)) if d.labels else 1, lambda d: ag.Parameter(2.0),
    lambda d: lambda: 1 / 0 if False else fails(), lambda d: type("Mine", (), {"shape": (2,), "dtype": "f8"})(),
    lambda d: _nested(list, 100), lambda d: _nested(dict, 50), lambda d: _circular(), lambda d: cc.current_mesh(),
]  # fmt: skip


def _nested(kind: type, depth: int) -> Any:
    found: Any = 1.0
    for _ in range(depth):
        found = [found] if kind is list else {"a": found}
    return found


def _circular() -> list[Any]:
    found: list[Any] = [1.0]
    found.append(found)
    return found


def _fixed(*values: Any) -> Callable[[Draw], Any]:
    return lambda d: d.pick(values)


_ARRAY = lambda d: d.tensor() if d.random.random() < 0.6 else d.array()
_REAL = lambda d: d.tensor(d.pick([(4,), (2, 3), (3, 3)]), "d")
_SQUARE = lambda d: d.tensor((3, 3), "d")
GOOD: dict[str, Callable[[Draw], Any]] = {
    "axis": _fixed(0, -1, None, 1), "axes": _fixed(0, (0,), None), "dim": _fixed(0, -1, None), "dims": _fixed(0),
    "dtype": _fixed(None, "float32", float), "out": _fixed(None), "shape": _fixed((2, 3), (4,), 3), "order": _fixed("C", 1),
    "keepdims": _fixed(True, False), "key": lambda d: Key(3, "fuzz"), "name": _fixed("w", "fuzz"), "ranks": _fixed(1, 2, [1]),
    "fun": _fixed(squares, ag.numpy.sin), "f": _fixed(squares, ag.numpy.sin), "function": _fixed(squares), "program": _fixed(identity),
    "input": _REAL, "weight": lambda d: d.tensor((3, 3), "d"), "bias": _fixed(None, True), "to": _fixed(cc.R, cc.I),
    "lr": _fixed(0.1), "like": _ARRAY, "norm": _fixed(None), "algorithm": _fixed("native", "ring"), "reduction": _fixed("mean"),
    "device": _fixed(None, "cpu"), "argnum": _fixed(0), "argnums": _fixed(0), "n": _fixed(3), "padding": _fixed(0, 1),
    "stride": _fixed(1), "seed": _fixed(0), "k": _fixed(0, 1), "mode": _fixed("reverse", "ranks"), "root": _fixed(0), "params": lambda d: [d.parameter()],
    "parameters": lambda d: [d.parameter()], "optimizer": lambda d: d.optimizer(), "kernel_size": _fixed(2), "dilation": _fixed(1),
    "layout": _fixed({"dp": cc.V}, None), "mesh": lambda d: cc.current_mesh(), "causal": _fixed(True, False), "target": lambda d: np.array([0, 1]),
    "labels": lambda d: np.array([0, 1]), "module": lambda d: d.module(), "model": lambda d: d.module(), "loss": _fixed(lambda m: squares(m(np.ones((2, 3))))),
    "microbatches": _fixed(2, 4), "ranks_": _fixed(2), "source": _fixed(0), "dest": _fixed(0), "src": _fixed(0), "dst": _fixed(0), "pairs": _fixed([(0, 0)]),
    "widths": _fixed(1), "schedule": lambda d: parallel_schedule(d), "costs": _fixed(None), "stages": _fixed(2, 1), "path": _fixed("fuzz.bin"),
    "file": _fixed("fuzz.bin"), "tensor": lambda d: d.pick([d.tensor, d.parameter])(), "tensors": lambda d: [d.tensor()], "arrays": lambda d: [d.array((3,)), d.tensor((3,))],
    "xs": lambda d: [d.tensor((3,), "d")], "indices": _fixed(0, [0, 1]), "maker": _fixed(identity), "condition": lambda d: d.array((4,), "?"), "step": _fixed(1), "state": _fixed({}, None),
    "A": _SQUARE, "B": _SQUARE, "cov": lambda d: np.eye(3), "p": _fixed(0.5, 2), "ratio": _fixed(0.5), "q": _fixed(0.5, 50), "tape": lambda d: ag.Tape(), "array": lambda d: d.array(),
    "group": lambda d: "dp", "takes": _fixed([cc.V], (cc.V,)), "gives": _fixed(cc.V), "collective": _fixed(cc.all_reduce), "split_dim": _fixed(0), "concat_dim": _fixed(0),
    "addends": lambda d: [np.ones(2)], "global_shape": _fixed(None, (4,)), "dataset": lambda d: loaders.TensorDataset(np.ones((4, 3)), np.arange(4)),
    "batch_size": _fixed(2), "batch": lambda d: (np.ones((4, 3)), np.arange(4)), "data": lambda d: np.ones((4, 3)), "optimizers": lambda d: [d.optimizer()],
    "query": lambda d: d.tensor((2, 4, 8), "d"), "value": lambda d: d.tensor((2, 4, 8), "d"), "in_features": _fixed(3), "out_features": _fixed(2),
    "normalized_shape": _fixed(3), "num_features": _fixed(3), "input_size": _fixed(3), "hidden_size": _fixed(4), "embed_dim": _fixed(8), "num_heads": _fixed(2),
    "d_model": _fixed(8), "nhead": _fixed(2), "in_channels": _fixed(3), "out_channels": _fixed(2), "num_embeddings": _fixed(5), "embedding_dim": _fixed(3),
    "num_groups": _fixed(1), "num_channels": _fixed(3), "width": _fixed(8), "hidden": _fixed(4), "experts": _fixed(2), "size": _fixed(2, 4), "extent": _fixed(8),
    "word": _fixed("N"), "operation": _fixed("sin", "multiply"), "modules": lambda d: [d.module()], "layers": lambda d: [d.module(), d.module()],
    "text": _fixed("a"), "label": _fixed(cc.R, cc.V), "rank": _fixed(0), "adjoint": _fixed(identity), "forward": _fixed(identity), "milestones": _fixed([2, 4]),
    "microbatch": _fixed(0, 1), "stage": _fixed(0), "dx": _fixed(1.0), "x0": _REAL, "x": _ARRAY, "a": _ARRAY, "b": _ARRAY, "args": _ARRAY, "attention": _fixed(None),
}  # fmt: skip
"""Plausible values by the name of a parameter."""

AXES = {"axis", "axes"}  # names of mesh axes in the functions of collectives and parallel


def parallel_schedule(d: Draw) -> Any:
    return d.pick([pipeline.gpipe, pipeline.one_f_one_b])(2, 4)


def _no() -> Any:
    raise NoInstance


def _trained() -> Any:
    model = nn.Linear(3, 2)
    return model, "dp", optim.SGD(model.parameters(), lr=0.1)


def _layout() -> Any:
    with cc.Mesh(dp=1):
        return ag.tensor(np.ones(2), {"dp": cc.V}).layout


INSTANCES: dict[Any, Callable[[Draw], Any]] = {
    ag.Tensor: lambda d: d.tensor(), ag.Parameter: lambda d: d.parameter(), nn.Module: lambda d: d.module(),
    optim.Optimizer: lambda d: d.optimizer(), ag.Tape: lambda d: ag.Tape(), cc.Mesh: lambda d: cc.Mesh(dp=-1) if d.labels else cc.Mesh(dp=1),
    cc.Timeline: lambda d: cc.timeline(None) ,
    nn.Sequential: lambda d: nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.ModuleList: lambda d: nn.ModuleList([nn.Tanh(), nn.Linear(3, 3)]),
    cc.Pending: lambda d: cc.all_reduce_async(ag.tensor(np.ones(3)), "dp") if d.labels else _no(),
    nn.SelfAttention: lambda d: nn.SelfAttention(4), nn.TiedLinear: lambda d: nn.TiedLinear(nn.Embedding(5, 3)),
    optim.MasterWeights: lambda d: optim.MasterWeights(optim.SGD, [d.parameter()], lr=0.1),
    optim.Offload: lambda d: optim.Offload(optim.SGD, [d.parameter()], lr=0.1),
    loaders.TensorDataset: lambda d: loaders.TensorDataset(np.ones((4, 3)), np.arange(4)),
    cc.DryRun: lambda d: cc.dry(2, mesh={"dp": 2}), cc.Link: lambda d: cc.Link(1e-6, 1e9),
    cc.Topology: lambda d: cc.Topology(2, cc.Link(1e-6, 1e9), cc.Link(1e-6, 1e9)),
    parallel.CompressedAdam: lambda d: parallel.CompressedAdam([d.parameter()], parallel.OneBit(momentum=0.9), lr=0.1),
    parallel.LocalSGD: lambda d: parallel.LocalSGD(*_trained(), every=2),
    parallel.DiLoCo: lambda d: parallel.DiLoCo(*_trained(), every=2),
    parallel.ParameterServer: lambda d: parallel.ParameterServer(*_trained()),
    parallel.Trainer: lambda d: parallel.Trainer(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), nn.MSELoss(reduction="sum"), cc.current_mesh(),
        optimizer=lambda params: optim.SGD(params, lr=0.1)),
    context.RingAttention: lambda d: context.RingAttention(nn.SelfAttention(4), "dp"),
    context.UlyssesAttention: lambda d: context.UlyssesAttention(nn.SelfAttention(4), "dp"),
    expert.Router: lambda d: expert.Router(8, 2, 1, True),
    pipeline.Pipeline: lambda d: pipeline.Pipeline([nn.Linear(3, 3), nn.Tanh()], nn.MSELoss(reduction="sum"), axis="dp", microbatches=2),
    ag.Layout: lambda d: d.tensor().layout or _layout(), Setting: lambda d: Setting({"dp": 2, "tp": 2}, ("dp",)),
    Report: lambda d: Report((Compared("w", 1.0, 1.0, 0.0),), 1.0, 1.0, 1e-6, 2), Order: lambda d: Order(True, d.pick([True, False])),
    pipeline.Simulation: lambda d: pipeline.simulate(parallel_schedule(d)), pipeline.Schedule: parallel_schedule,
    pipeline.Record: lambda d: pipeline.Record(0, [], 0.0, 1.0, 1), ag.extend.VSpace: lambda d: ag.extend.vspace(d.array((3,), "d")),
    nn.FileEntry: lambda d: nn.FileEntry((3,), np.dtype("d"), {}, {"dp": (0, 2)}),
    nn.ModuleDict: lambda d: nn.ModuleDict({"a": nn.Tanh()}), optim.SGD: lambda d: d.optimizer(),
    loaders.DataLoader: lambda d: loaders.DataLoader(loaders.TensorDataset(np.ones((4, 3)), np.arange(4)), batch_size=2),
}  # fmt: skip
"""Makers of instances; other classes are made by plausible arguments."""


def good(parameter: inspect.Parameter, target: Target, d: Draw) -> Any:
    if parameter.name in AXES and target.name.startswith(RANKS):
        return "dp"
    maker = GOOD.get(parameter.name)
    if maker is not None:
        return maker(d)
    return _ARRAY(d) if parameter.default is parameter.empty else parameter.default


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
            given += [d.odd() if is_all_odd or p.name in chosen else good(p, target, d) for _ in range(d.random.randrange(3))]
        if p.kind is p.VAR_KEYWORD and (is_all_odd or p.name in chosen):
            words[d.pick(["axis", "nope", "dim", "out", "x"])] = d.odd()
    if 0.95 <= kind < 0.97:
        given.append(d.odd())
    elif kind >= 0.97:
        words[d.pick(["nope", "axis", "dim", "keepdim", "out"])] = d.odd()
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
    d.given = args, words  # type: ignore[attr-defined]
    context = ag.Tape() if d.random.random() < 0.4 else contextlib.nullcontext()
    with context:
        use(call(*args, **words), target, d)


class NoInstance(Exception):
    """There is no instance to call a method of."""


def use(found: Any, target: Target, d: Draw) -> None:
    if isinstance(found, cc.Pending):
        found.wait()
    elif isinstance(found, types.FunctionType | types.MethodType) or type(found).__name__ == "partial":
        args = [d.odd() if d.random.random() < 0.5 else _REAL(d) for _ in range(d.random.randrange(3))]
        d.given = *d.given, args  # type: ignore[attr-defined]
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
    if isinstance(error, AssertionError) and str(error) and target.name.startswith("autograd.test_util"):
        return "refused"  # the check has failed
    last = frames[-1].name
    if last == "called":
        return "refused"  # by a builtin function of the pool that is a primitive
    if last == target.name.rpartition(".")[2] and isinstance(error, NotImplementedError | KeyError | IndexError):
        return "refused"  # an abstract method, or what Python's containers raise for a key
    if last == "of_rank_numbers" or (isinstance(error, Exception) and _numpy_refuses(error, target, given)):
        return "refused"  # NumPy refuses plain values
    called = re.match(r"(?:[\w<>]+\.)*([\w<>]+)\(\) (got|takes|missing)", str(error))
    called = called or re.search(r"is an invalid keyword argument for (\w+)\(\)", str(error))
    names = (getattr(x, "name", getattr(x, "__name__", "")) for x in (*given[0], *given[1].values()))
    if called and called[1] in {target.name.rpartition(".")[2], *filter(_is_text, names)}:
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


def _is_text(x: Any) -> bool:
    return isinstance(x, str)


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

        def audit(event: str, args: Any) -> None:
            if not self.is_guarded:
                return
            if event in ("os.fork", "os.forkpty", "subprocess.Popen", "os.kill", "os.exec", "socket.connect", "os.system"):
                self.is_guarded = False
                raise Forbidden(event)
            if event == "open" and isinstance(args[0], str | bytes) and args[1] and set(str(args[1])) & set("wax+"):
                path = os.path.abspath(os.fsdecode(args[0]))
                if not path.startswith((folder, "/dev/null", "/dev/shm", tempfile.gettempdir())):
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
            d.given = ((), {})  # type: ignore[attr-defined]
            try:
                run_one(target, d)
                outcomes.append("returned")
            except BaseException as error:
                outcome = verdict(error, target, d.given)  # type: ignore[attr-defined]
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
            warnings.simplefilter("always", append=True)
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
            of_numpy = target.name.startswith(("autograd.numpy", "autograd.scipy", "autograd.Leaf"))  # on what it is given
            if issubclass(warning.category, RuntimeWarning | RingtapeError) or of_numpy and issubclass(
                warning.category, DeprecationWarning | UserWarning
            ):
                continue
            if is_own_file(warning.filename):
                self.beside.append(f"{warning.category.__name__}: {warning.message} at {warning.filename}:{warning.lineno}")
        if self.beside:
            outcomes.append("internal")
            self.note(number, "beside", target, "", None, "; ".join(self.beside))
        self.counts[next((o for o in ("hang", "forbidden", "internal") if o in outcomes), outcomes[0] if outcomes else "none")] += 1
        self.seconds[target.name] += time.perf_counter() - begun  # type: ignore[assignment]
        self.reset()

    def note(self, number: int, kind: str, target: Target, where: str, d: Draw | None, error: str) -> None:
        args, words, *more = d.given if d is not None else ((), {})  # type: ignore[attr-defined]
        text = ", ".join([*map(shown, args), *(f"{k}={shown(v)}" for k, v in words.items())])
        later = f"({', '.join(map(shown, more[0]))})" if more else ""
        self.faults.append(Fault(number, kind, target.name, where, f"{target.name}({text}){later}", error))


def run(
    calls: int, seed: int, limit_s: float = 20.0, only: str = "", progress: bool = False, alone: int | None = None
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
    parser.add_argument("--limit", type=float, default=20.0, help="seconds that one call may take")
    parser.add_argument("--call", type=int, help="the number of one call, which is made alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    calls = options.calls if options.call is None else options.call + 1
    fuzzer = run(calls, options.seed, options.limit, options.only, not options.json, options.call)
    if options.json:
        print(json.dumps({"sites": sorted({(f.name, f.where.split(" < ")[0]) for f in fuzzer.faults}), "counts": fuzzer.counts, "names": len(fuzzer.targets), "faults": [str(f) for f in fuzzer.faults],
                          "never_made": sorted(fuzzer.never_made)}))  # fmt: skip
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
