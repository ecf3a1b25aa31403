"""The stubs of `autograd.numpy`, by which type checkers see that a function of Tensors gives a Tensor.

``python -m autograd stubs`` writes them, from the functions as they are: their names, parameters and annotated results.
In an annotated result, Any stands for an array or a Tensor; a result of one or several of them stays Any.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..engine.primitive import Primitive

__all__ = ["STUBS", "numpy_version", "overloads", "own_functions", "path", "stub"]

STUBS = ("autograd.numpy", "autograd.numpy.fft", "autograd.numpy.linalg")
"""The modules that have a stub."""

_OPTIONS = frozenset((
    "axis", "axis1", "axis2", "condlist", "destination", "dtype", "funclist", "indices_or_sections", "kth", "n",
    "new_shape", "obj", "pad_width", "q", "repeats", "reps", "shape", "shift", "source", "subscripts",
))  # fmt: skip
"""Parameters without a default that are no operands."""
_SEQUENCES = frozenset(("arrays", "choicelist", "choices", "object", "tup"))
"""Parameters that take sequences of operands."""

_HEAD = '''\
"""Written by ``python -m autograd stubs`` with NumPy {version}; a test fails when it is out of date."""

from typing import Any, overload

'''


_OTHERS = {
    "where": ["condition: Any) -> tuple[ndarray, ...]", "condition: Any, x: Tensor, y: Any) -> Tensor",
              "condition: Any, x: Any, y: Tensor) -> Tensor", "condition: Tensor, x: Any, y: Any) -> Tensor",
              "condition: Any, x: Any, y: Any) -> Any"],
    "einsum": ["subscripts: str, x: Tensor, /, *operands: Any, optimize: Any = False, **words: Any) -> Tensor",
               "subscripts: str, x: Any, y: Tensor, /, *operands: Any, optimize: Any = False, **words: Any) -> Tensor",
               "*operands: Any, optimize: Any = False, **words: Any) -> Any"],
}  # fmt: skip
"""The overloads of functions that can be called in several ways."""


def overloads(name: str, function: Any) -> str:
    """Return the declaration of a function: one overload for each operand that may be a Tensor, and one for arrays.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> from autograd.testing.stubs import overloads
    >>> print(overloads("arctan2", np.arctan2))
    @overload
    def arctan2(y: Tensor, x: Any, /) -> Tensor: ...
    @overload
    def arctan2(y: Any, x: Tensor, /) -> Tensor: ...
    @overload
    def arctan2(y: Any, x: Any, /, *args: Any, **words: Any) -> Any: ...
    """
    if not hasattr(function, "__name__") and not isinstance(function, Primitive):
        return f"{name}: Any"  # r_ and c_
    if name in _OTHERS:
        return "\n".join(f"@overload\ndef {name}({each}: ..." for each in _OTHERS[name])
    if isinstance(function, Primitive):
        names = [function.operand_name(i) for i in range(len(function.words))]
        parameters = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_ONLY) for each in names]
        result, more = "Any", ", *args: Any, **words: Any"  # of NumPy's function
    else:
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())
        result, more = function.__annotations__.get("return", "Any"), ""
    of_tensors = "Any" if "|" in result or "[" in result and "Any" not in result else result.replace("Any", "Tensor")
    declared = [
        f"def {name}({_parameters(parameters, p)}) -> {of_tensors}: ..."
        for p in parameters
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD and p.name not in _OPTIONS
        if result not in ("int", "tuple[int, ...]")
    ]
    declared.append(f"def {name}({_parameters(parameters)}{more}) -> {'Any' if '|' in result else result}: ...")
    if of_tensors == "Any" or len(declared) == 1:
        return declared[-1]
    return "\n".join("@overload\n" + each for each in declared)


def _parameters(parameters: list[inspect.Parameter], tensor: inspect.Parameter | None = None) -> str:
    """The parameters as text, one of which is a Tensor, or a sequence of Tensors."""
    found = []
    kinds = [p.kind for p in parameters]
    for i, p in enumerate(parameters):
        annotation = "Any"
        if p is tensor:
            annotation = "Tensor"
            if p.name in _SEQUENCES:
                annotation += " | Sequence[Tensor] | Sequence[Sequence[Tensor]]"
        stars = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        if p.kind is p.KEYWORD_ONLY and not {p.KEYWORD_ONLY, p.VAR_POSITIONAL} & {*kinds[:i]}:
            found.append("*")
        is_plain = p.default is None or isinstance(p.default, bool | int | float | str)
        default = "" if p.default is p.empty else f" = {p.default!r}" if is_plain else " = ..."
        found.append(f"{stars}{p.name}: {annotation}{default}")
        if p.kind is p.POSITIONAL_ONLY and p.POSITIONAL_ONLY not in kinds[i + 1 :]:
            found.append("/")
    return ", ".join(found)


def own_functions(module: ModuleType) -> dict[str, Any]:
    """Return the functions of a module of `STUBS` that are not NumPy's, by name."""
    found = {}
    for name, function in sorted(vars(module).items()):
        own = isinstance(function, Primitive) or getattr(function, "__module__", "").startswith("autograd.")
        # on plain arguments, which are the usual ones, zeros and its like are NumPy's
        as_numpy = (function.__doc__ or "").startswith(f"Return what `numpy.{name}` returns")
        if not name.startswith("_") and own and not as_numpy and not isinstance(function, ModuleType):
            found[name] = function
    return found


def stub(module: ModuleType) -> str:
    """Return the text of the stub of a module of `STUBS`."""
    numpy = module.__name__.removeprefix("autograd.")
    theirs = np if numpy == "numpy" else getattr(np, numpy.removeprefix("numpy."))
    functions = own_functions(module)
    found = {name: getattr(module, name, None) for name in module.__all__}
    modules = {name: x.__name__.rpartition(".")[0] for name, x in found.items()
               if isinstance(x, ModuleType) and x.__name__.startswith("autograd.")}  # fmt: skip
    names = sorted({*theirs.__all__} - {*functions, *modules})
    imports = [f"from {numpy} import {name} as {name}" for name in names]
    imports += [f"from {package} import {name} as {name}" for name, package in sorted(modules.items())]
    imports.append("from autograd.engine.tensor import Tensor")
    declared = [overloads(name, function) for name, function in functions.items()]
    if any("Sequence[" in each for each in declared):
        imports.insert(0, "from collections.abc import Sequence")
    return _HEAD.format(version=numpy_version()) + "\n".join(imports) + "\n\n" + "\n\n".join(declared) + "\n"


def numpy_version() -> str:
    """Return the version of NumPy whose names the stubs import, without the part that adds no names."""
    return ".".join(np.__version__.split(".")[:2])


def path(name: str) -> Path:
    """Return the file of the stub of a module of `STUBS`."""
    root = Path(__file__).parents[1] / "numpy"
    return root / f"{name.rpartition('.')[2] if name != STUBS[0] else '__init__'}.pyi"
