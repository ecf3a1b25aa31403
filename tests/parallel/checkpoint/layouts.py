"""A GPT in every layout of a trainer, and its logical state, for the tests of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import collectives as cc
from autograd import nn, optim, random
from parallel import Column, Experts, Ring, Row, Trainer, Vocabulary

from ..models import gpt

CONFIG = gpt.Config(vocabulary=13, width=24, heads=12, layers=6, dropout=0.2)
ROWS, TOKENS = 8, 8
PLAN = {
    "*.table": Vocabulary("tp"), "*.qkv": Column("tp", blocks=3), "*.proj": Row("tp"), "*.mlp.up": Column("tp"),
    "*.mlp.down": Row("tp"), "*.out": Vocabulary("tp"), "loss.rows": Vocabulary("tp"), "*.attend": Ring("cp"),
}  # fmt: skip
EXPERTS = {key.replace("*.mlp", "[135].mlp"): style for key, style in PLAN.items()} | {"[246].mlp": Experts("ep")}

LAYOUTS: dict[str, dict[str, Any]] = {
    "1": {"dp": 1}, "dp2": {"dp": 2}, "tp2": {"tp": 2}, "pp2": {"pp": 2}, "cp2": {"cp": 2},
    "dp2 zero 1": {"dp": 2, "zero": 1}, "dp2 zero 2": {"dp": 2, "zero": 2}, "dp2 zero 3": {"dp": 2, "zero": 3},
    "dp3": {"dp": 3}, "tp3": {"tp": 3}, "pp3": {"pp": 3}, "dp3 zero 3": {"dp": 3, "zero": 3},
    "dp2 tp2": {"dp": 2, "tp": 2}, "pp2 dp2 zero 1": {"pp": 2, "dp": 2, "zero": 1}, "tp2 cp2": {"tp": 2, "cp": 2},
    "pp2 tp2": {"pp": 2, "tp": 2}, "dp4 zero 3": {"dp": 4, "zero": 3}, "pp4": {"pp": 4},
    "pp2 interleaved": {"pp": 2, "schedule": "interleaved"}, "pp2 dp2 tp2": {"pp": 2, "dp": 2, "tp": 2},
    "dp8 zero 3": {"dp": 8, "zero": 3}, "pp8": {"pp": 8}, "tp4 dp2 zero 2": {"tp": 4, "dp": 2, "zero": 2},
    "dp2 tp2 cp2": {"dp": 2, "tp": 2, "cp": 2},
}  # fmt: skip
OF_EXPERTS: dict[str, dict[str, Any]] = {
    "1": {"dp": 1}, "ep2": {"ep": 2}, "ep3": {"ep": 3}, "dp2": {"dp": 2}, "dp2 ep2": {"dp": 2, "ep": 2},
    "ep2 tp2": {"ep": 2, "tp": 2}, "ep4 zero 3": {"ep": 4, "zero": 3}, "dp2 ep2 tp2": {"dp": 2, "ep": 2, "tp": 2},
    "pp2 ep2": {"pp": 2, "ep": 2},
}  # fmt: skip
AXES = ("pp", "dp", "ep", "cp", "tp")


def model(experts: int = 0, dtype: Any = np.float64) -> nn.Sequential:
    """The GPT, with weights that make every gradient matter."""
    layers = gpt.gpt(gpt.Config(**{**vars(CONFIG), "experts": experts}), random.Key(1), dtype)
    rng = np.random.default_rng(2)
    for p in layers.parameters():
        p.array = (p.array + 0.05 * rng.standard_normal(p.array.shape)).astype(dtype)
    return layers


def batch(step: int) -> Any:
    """The tokens and the targets of a step."""
    return np.random.default_rng([3, step]).integers(0, CONFIG.vocabulary, (2, ROWS, TOKENS))


def ranks_of(layout: dict[str, Any]) -> int:
    return math.prod(layout.get(axis, 1) for axis in AXES)


def trainer(layout: dict[str, Any], experts: bool = False, optimizer: Any = None) -> Trainer:
    """The trainer of a layout. A rank calls it."""
    sizes = {axis: n for axis, n in layout.items() if axis in AXES}
    rest = {"microbatches": 2, **{name: x for name, x in layout.items() if name not in AXES}}
    return Trainer(
        partial(model, 4 if experts else 0), gpt.Loss(), cc.Mesh.fit(**sizes), EXPERTS if experts else PLAN,
        optimizer=optimizer or (lambda p: optim.AdamW(p, lr=1e-2)), clip=0.5, **rest,
    )


def on_threads(layout: dict[str, Any], program: Callable[[], Any]) -> Any:
    """What the first rank returns."""
    return cc.run(program, ranks_of(layout))[0]


def logical(made: Trainer) -> dict[str, Any]:
    """The whole values of a run by name, flat, whatever the layout."""
    found: dict[str, Any] = {"steps": made.steps}
    for stage in made.state_dict()["stages"]:
        for name, value in stage["model"].items():
            found[name] = value.ravel()
        known = stage["optimizer"]
        names = [name for names in known["names"] for name in names]
        for slot, values in known.items():
            if isinstance(values, list) and slot != "names" and len(values) == len(names):
                for name, value in zip(names, values, strict=True):
                    found[f"{slot} of {name}"] = value if value is None or isinstance(value, int) else value.ravel()
    return found


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Both have the same names, and the same bits."""
    assert a.keys() == b.keys()
    for name, x in a.items():
        assert np.array_equal(x, b[name]), name
