"""The operators and methods of Tensors, which are operations: the class takes them from `autograd.ops` at first use.

The engine imports nothing above it, and `autograd.ops` changes nothing below it. So `at_first_use` gives the class an
`AtFirstUse` for each name. It loads `autograd.ops` by name, and puts the operations of its table in their places: a
Tensor has its operators however it was made, by a pickle, too, or by a module that declares no operation.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeVar

__all__ = ["ATTRIBUTES", "AtFirstUse", "at_first_use", "load_operations"]

Class = TypeVar("Class", bound=type)

_REFLECTED = ("add", "sub", "mul", "truediv", "matmul", "pow", "mod", "floordiv", "divmod", "and", "or", "xor",
              "lshift", "rshift")  # fmt: skip
_OTHERS = ("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge", "getitem", "round", "index")
ATTRIBUTES = (
    *(f"__{name}__" for name in (*_REFLECTED, *(f"r{name}" for name in _REFLECTED), *_OTHERS)),
    "_from_function", "_from_ufunc", "__array_namespace__", "__dlpack__", "__dlpack_device__", "to_device",
    "T", "device", "imag", "itemsize", "mT", "nbytes", "real",
    "all", "any", "argmax", "argmin", "argpartition", "argsort", "astype", "choose", "chunk", "clip", "clone",
    "compress", "conj", "conjugate", "contiguous", "copy", "cpu", "cuda", "cumprod", "cumsum", "detach", "diagonal",
    "dim", "dot", "flatten", "masked_fill", "max", "mean", "min", "nonzero", "numel", "permute", "prod", "ptp",
    "ravel", "repeat", "reshape", "round", "searchsorted", "split", "squeeze", "std", "sum", "swapaxes", "take", "to",
    "tolist", "trace", "transpose", "unsqueeze", "var", "view",
    "fill", "itemset", "partition", "put", "resize", "setfield", "sort",
)  # fmt: skip
"""The names in the table of `ops.tensor_methods`; a test compares them. The last line has those that are refused."""


def load_operations() -> Any:
    """Load all operations, and return the module that gathers them."""
    return import_module("autograd.ops.everything")


class AtFirstUse:
    """An attribute of a class that is looked up for the first time: operations take the place of all of its kind."""

    def __init__(self, owner: type, name: str):
        self.owner, self.name = owner, name

    def __get__(self, x: Any, kind: type | None = None) -> Any:
        for name, operation in load_operations().TENSOR_ATTRIBUTES.items():
            setattr(self.owner, name, operation)
        return getattr(kind if x is None else x, self.name)


def at_first_use(cls: Class) -> Class:
    """Have the class of Tensors take its operators and methods from `autograd.ops` at their first use."""
    for name in ATTRIBUTES:
        setattr(cls, name, AtFirstUse(cls, name))
    return cls
