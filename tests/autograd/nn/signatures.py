"""The signatures of torch and of ringtape side by side, and the page that lists every difference with its reason.

    RINGTAPE_PYTHON_TORCH=PATH python -m tests.autograd.nn.signatures

reads torch's signatures again, by the interpreter PATH, into ``torch_signatures.json``, and writes the page
``docs/torch_signatures.md``. The names are those that both have.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy

import autograd as ag
from autograd import nn, optim
from autograd.engine.primitive import Primitive

from .signature_reasons import ANYWHERE, DEFAULTS, RENAMED, SCHEDULES, STATES, TENSOR_METHODS, UNLIKE

HERE = Path(__file__).parent
DATA = HERE / "torch_signatures.json"
PAGE = HERE.parents[2] / "docs" / "torch_signatures.md"


class Parameter(NamedTuple):
    """One parameter: its name, the text of its default (empty if there is none), and whether it is given by name."""

    name: str
    default: str
    by_name: bool

    def __str__(self) -> str:
        return self.name + (f"={self.default}" if self.default else "")


def ours(section: str) -> dict[str, Any]:
    """The objects of ringtape that a section compares, by torch's names."""
    modules = {name: x for name, x in vars(nn).items() if isinstance(x, type) and name in nn.__all__}
    if section == "nn":
        return {f"{name}{part}": x if not part else x.forward for name, x in modules.items()
                for part in ("", ".forward") if not part or "forward" in dir(x)}  # fmt: skip
    if section == "nn.functional":
        return {name: getattr(nn.functional, name) for name in nn.functional.__all__}
    if section in ("nn.init", "nn.utils"):
        module = getattr(nn, section.partition(".")[2])
        return {name: getattr(module, name) for name in module.__all__}
    if section == "optim":
        return {name: x for name, x in vars(optim).items() if isinstance(x, type) and name in optim.__all__}
    if section == "optim.lr_scheduler":
        return {theirs: getattr(optim.schedules, name) for theirs, name in SCHEDULES.items()}
    owner = {"Module": nn.Module, "Optimizer": optim.Optimizer, "Tensor": ag.Tensor}[section]
    found = {name: getattr(owner, name) for name in dir(owner) if not name.startswith("_")}
    return {name: x for name, x in found.items() if callable(x)}


SECTIONS = (
    "nn", "nn.functional", "nn.init", "nn.utils", "optim", "optim.lr_scheduler", "Module", "Optimizer", "Tensor",
)  # fmt: skip


def theirs_read(python: str) -> dict[str, Any]:
    """Torch's signatures of our names, by an interpreter that has torch; also the entries of its modules' states."""
    asked: dict[str, Any] = {section: sorted(ours(section)) for section in SECTIONS}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = subprocess.run(
        [python, "-W", "ignore", str(HERE / "torch_signatures.py")], input=json.dumps({**asked, "states": STATES}),
        capture_output=True, text=True, env=environment, timeout=240, check=False,
    )  # fmt: skip
    if run.returncode:
        raise RuntimeError(f"torch_signatures.py failed under {python}:\n{run.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@cache
def theirs() -> dict[str, Any]:
    """Torch's signatures, as they are kept beside this file."""
    found: dict[str, Any] = json.loads(DATA.read_text())
    return found


def parsed(text: str) -> list[Parameter]:
    """The parameters of a signature that is given as the text between the parentheses."""
    arguments = ast.parse(f"def f({text}): ...").body[0].args
    positional = [*arguments.posonlyargs, *arguments.args]
    none = [None] * (len(positional) - len(arguments.defaults))
    pairs = [*zip(positional, [*none, *arguments.defaults], strict=True)]
    found = [Parameter(a.arg, "" if d is None else _plain(ast.unparse(d)), False) for a, d in pairs]
    if arguments.vararg is not None:
        found.append(Parameter("*" + arguments.vararg.arg, "", False))
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return found + [Parameter(a.arg, "" if d is None else _plain(ast.unparse(d)), True) for a, d in by_name]


def parameters(function: Any) -> list[Parameter]:
    """The parameters of a function, class or operation of ringtape, without `self` and without ``**words``."""
    if isinstance(function, Primitive):
        return [Parameter(name, "", False) for name in function.operands[: len(function.words)]]
    found = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is not p.VAR_KEYWORD and p.name != "self":
            default = "" if p.default is p.empty else _plain(repr(p.default))
            found.append(Parameter("*" * (p.kind is p.VAR_POSITIONAL) + p.name, default, p.kind is p.KEYWORD_ONLY))
    return found


def _plain(default: str) -> str:
    """The text of a default, in which 0, 0.0 and 1e-3, 0.001 are one number."""
    if default == "<class 'numpy.float32'>":
        return "float32"
    try:
        value = ast.literal_eval(default)
    except (ValueError, SyntaxError):
        return default
    if isinstance(value, float) and not isinstance(value, bool) and value == int(value) and abs(value) < 1e6:
        value = int(value)
    return repr(value)


class Difference(NamedTuple):
    """A difference of one name: what differs, and why; no reason if none is known."""

    name: str
    what: str
    reason: str


def differences(section: str, name: str) -> list[Difference]:
    """The differences of one name, of the overload of torch that has the fewest.

    A call that both accept must mean the same. So the positional parameters are torch's first ones, in order; the
    others are given by name; those that both have, have the same default; what only one has is an error in the other,
    or stands after torch's, by name, with a default.
    """
    where = f"{section}.{name}"
    if where in UNLIKE:
        return [Difference(name, "not compared", UNLIKE[where])]
    overloads = [text for text in theirs()[section][name] if text not in ("*args, **kwargs", "**kwargs")]
    mine = parameters(ours(section)[name])
    if section == "optim.lr_scheduler":  # a function of the step, which is made with the rate and without the optimizer
        mine = mine[1:] if mine[0].name == "lr" else mine
        overloads = [text.replace(", optimizer=None", "").removeprefix("optimizer, ") for text in overloads]
    if section == "Tensor":
        if hasattr(numpy.ndarray, name):
            return [Difference(name, "the method of NumPy's arrays", TENSOR_METHODS.get(name, TENSOR_METHODS[""]))]
        mine = mine[1:] if mine[:1] and mine[0].name in ("x", "a") else mine
    found = [list(_compared(where, name, mine, parsed(text))) for text in overloads]
    return min(found, key=lambda each: (sum(not x.reason for x in each), len(each)))


def _compared(where: str, name: str, mine: list[Parameter], other: list[Parameter]) -> Iterator[Difference]:
    def reason(parameter: str, table: dict[str, str] = ANYWHERE) -> str:
        for key in (f"{where}({parameter})", f"{where.partition('.')[0]}({parameter})", parameter):
            if key in table:
                return table[key]
        return ""

    renamed = {new: old for (place, old), new in RENAMED.items() if where.startswith(place)}
    mine = [p._replace(name=renamed.get(p.name, p.name)) for p in mine]
    by_name = {p.name: p for p in other}
    positional = [p for p in mine if not p.by_name]
    for i, p in enumerate(positional):
        if i >= len(other) or other[i].name != p.name:
            yield Difference(name, f"`{p}` at position {i + 1}", reason(p.name))
    for p in mine:
        if p.name not in by_name:
            if p.by_name:
                yield Difference(name, f"`{p}` is only here, by name", reason(p.name) if p.default else "")
        elif p.default != by_name[p.name].default:
            there = by_name[p.name].default or "none"
            yield Difference(name, f"the default of `{p}`; torch: {there}", reason(p.name, DEFAULTS))
    has = {p.name for p in mine}
    for p in other:
        if p.name not in has:
            yield Difference(name, f"`{p}` is only in torch", reason(p.name))


def both(section: str) -> list[str]:
    """The names of a section that torch has, too."""
    return [name for name in sorted(ours(section)) if theirs()[section].get(name)]


def page() -> str:
    """The documentation page."""
    lines = [INTRODUCTION.format(version=theirs()["torch"])]
    for section in SECTIONS:
        names = both(section)
        found = {name: differences(section, name) for name in names}
        same = [f"`{name}`" for name in names if not found[name]]
        lines += [f"## {TITLES.get(section, 'torch.' + section)}", ""]
        lines += [f"{NOTES[section]}\n"] if section in NOTES else []
        if same:
            lines += [f"The same in both: {', '.join(same)}.", ""]
        rows: dict[tuple[str, str], list[str]] = {}
        for name in names:
            for x in found[name]:
                rows.setdefault((x.what, x.reason), []).append(f"`{name}`")
        if rows:
            lines += ["| difference | of | reason |", "|---|---|---|"]
            lines += [f"| {what} | {', '.join(of)} | {reason} |" for (what, reason), of in rows.items()]
            lines += [""]
    return "\n".join(lines)


def write(python: str) -> None:
    """Read torch's signatures again, and write the page."""
    text = json.dumps(theirs_read(python), indent=0)
    DATA.write_text(text + "\n")
    theirs.cache_clear()
    PAGE.write_text(page())


TITLES = {
    "Module": "Methods of torch.nn.Module", "Optimizer": "Methods of torch.optim.Optimizer",
    "Tensor": "Methods of torch.Tensor",
}  # fmt: skip
NOTES = {
    "optim.lr_scheduler": "`StepLR` is `optim.schedules.step_lr`, and so on. The "
    "[guide](guides/torch.md#learning-rate-schedules) lists all, and has lines for `ReduceLROnPlateau`.",
}

INTRODUCTION = """# Signatures of torch and ringtape

The parameters of every name that both torch {version} and ringtape have, compared by a test. A call that both accept
means the same, because

- the parameters that can be given by position are torch's first ones, in torch's order;
- all others are given by name, where torch's order goes on with one that ringtape has not;
- a parameter that both have has the same default, or the reason is below;
- an argument that only torch has raises a `TypeError`, unless the reason says otherwise.

Tensors have the methods of NumPy's arrays first: where torch's differ, the table says how. `dim=` and `axis=` are one
argument everywhere, and `keepdim=` and `keepdims=`.
"""


if __name__ == "__main__":
    write(os.environ["RINGTAPE_PYTHON_TORCH"])
