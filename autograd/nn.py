"""Modules, small: parameters by stable names, `state_dict`, save and load.

A module is a class with a `forward`; its Parameters and sub-modules are found by attribute, in order of assignment, and
named by their path ("0.weight"). Nothing here divides by anything: losses are per example, and the program sums them
and divides by the global count.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import ops, random
from .arrays import is_inexact, move, to_host
from .errors import DtypeError, RingtapeError, ShapeError, TapeError
from .leaves import Parameter, tensor
from .ops import cross_entropy
from .state import state
from .tensor import TENSORS, Tensor

__all__ = [
    "Dropout", "Linear", "Module", "ReLU", "Sequential", "Sigmoid", "Tanh", "cross_entropy", "dropout", "load", "save",
]  # fmt: skip


class Module:
    """The base of all modules: override `forward`, assign Parameters and Modules as attributes.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import nn
    >>> class Scale(nn.Module):
    ...     def __init__(self):
    ...         self.weight = ag.Parameter([2.0])
    ...     def forward(self, x):
    ...         return x * self.weight
    >>> [name for name, _ in Scale().named_parameters()]
    ['weight']
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def named_owners(self, prefix: str = "") -> Iterator[tuple[str, Module, str, Parameter]]:
        """(path, owner, attribute, Parameter) of every parameter, in order of assignment."""
        for attribute, value in vars(self).items():
            if isinstance(value, Parameter):
                yield prefix + attribute, self, attribute, value
            elif isinstance(value, Module):
                yield from value.named_owners(f"{prefix}{attribute}.")
            elif isinstance(value, list | tuple):
                for i, item in enumerate(value):
                    if isinstance(item, Module):
                        yield from item.named_owners(f"{prefix}{attribute}.{i}.")

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """(name, Parameter) pairs, each parameter once; the parameters learn their names."""
        seen: set[int] = set()
        for path, _, _, parameter in self.named_owners():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                parameter.name = parameter.name or path
                yield path, parameter

    def parameters(self) -> list[Parameter]:
        """All parameters, each once, in order of assignment."""
        return [parameter for _, parameter in self.named_parameters()]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters():
            parameter.zero_grad()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters on the host, by name."""
        return {name: np.array(to_host(p.array)) for name, p in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set all parameters; nothing is changed unless every name, shape and dtype fits.

        Raises
        ------
        ShapeError, DtypeError
            Names missing or unknown, or an array that does not fit.
        TapeError
            A tape still needs a parameter.
        """
        mine = dict(self.named_parameters())
        missing, unknown = sorted(set(mine) - set(state)), sorted(set(state) - set(mine))
        if missing or unknown:
            raise ShapeError(
                f"load_state_dict: missing {missing or 'none'}, unknown {unknown or 'none'}; needed: {list(mine)}"
            )
        arrays = {}
        for name, p in mine.items():
            value = np.asarray(state[name])
            if value.shape != p.array.shape:
                raise ShapeError(f"load_state_dict: {name} has shape {value.shape}; needed: {p.array.shape}")
            if is_inexact(value.dtype) != is_inexact(p.array.dtype):
                raise DtypeError(f"load_state_dict: {name} has dtype {value.dtype}; needed: {p.array.dtype}")
            if type(p.array) is np.ndarray and not p.array.flags.writeable:
                raise TapeError(f"load_state_dict: a tape still needs {name}. Fix: load after backward")
            arrays[name] = move(value.astype(p.array.dtype), p.array)
        for name, p in mine.items():
            p.array = arrays[name]


class Linear(Module):
    """``y = x @ weight + bias``, weight stored [inputs, outputs].

    Weights are uniform in +-1/sqrt(inputs), from the thread's seed and the count of Linears made so far, so that every
    rank that builds the same program starts from the same numbers.

    Parameters
    ----------
    inputs, outputs : int
    bias : bool
    dtype : dtype
    key : random.Key, optional
        In the place of the thread's.

    Examples
    --------
    >>> from autograd import nn
    >>> nn.Linear(3, 2).weight.shape
    (3, 2)
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool = True, *, dtype: Any = np.float32, key: random.Key | None = None
    ):
        key = random.next_key("Linear") if key is None else key
        bound = 1.0 / max(inputs, 1) ** 0.5
        weight = random.uniform(key.fold("weight"), (inputs, outputs), low=-bound, high=bound, dtype=dtype)
        self.weight = Parameter(weight)
        self.bias = (
            Parameter(random.uniform(key.fold("bias"), (outputs,), low=-bound, high=bound, dtype=dtype))
            if bias
            else None
        )

    def forward(self, x: Any) -> Any:
        return x @ self.weight if self.bias is None else ops.linear(x, self.weight, self.bias)


class Sequential(Module):
    """Modules one after the other; parameters are named by their place ("0.weight").

    Examples
    --------
    >>> from autograd import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [name for name, _ in model.named_parameters()]
    ['0.weight', '0.bias', '2.weight', '2.bias']
    """

    def __init__(self, *modules: Module):
        self.modules = modules

    def forward(self, x: Any) -> Any:
        for module in self.modules:
            x = module.forward(x)
        return x

    def named_owners(self, prefix: str = "") -> Iterator[tuple[str, Module, str, Parameter]]:
        for i, module in enumerate(self.modules):
            yield from module.named_owners(f"{prefix}{i}.")


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Any) -> Any:
        return ops.relu(x)


class Tanh(Module):
    """tanh(x)."""

    def forward(self, x: Any) -> Any:
        return ops.tanh(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Any) -> Any:
        return ops.sigmoid(x)


def dropout(x: Any, p: float = 0.5, key: random.Key | None = None, training: bool = True) -> Any:
    """Zeros in the place of elements, each with probability p; the others divided by 1 - p. Any layout, kept.

    Which elements follows from the key and the element's place in the logical tensor, so that any number of ranks drop
    the same ones: each its part of a sharded x, all the same ones of equal copies, and of addends.

    Parameters
    ----------
    x : Tensor or array
    p : float
        0 <= p <= 1.
    key : random.Key, optional
        One for each draw; the thread's next one without it. See `random`.
    training : bool
        If False, x itself.

    Raises
    ------
    LayoutError
        x is Varying on an axis that the key is not along: its ranks would drop the same elements of different values.

    Notes
    -----
    Adjoint: the same elements dropped. Source: Srivastava et al., "Dropout", JMLR 15 (2014), section 4; scaled in
    training as torch does.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn, random
    >>> y = nn.dropout(numpy.ones(8), 0.5, random.Key(0, "dropout"))
    >>> sorted(set(y.tolist()))
    [0.0, 2.0]
    """
    if not 0 <= p <= 1:
        raise RingtapeError(f"dropout: p={p!r} was given; needed: a probability, 0 <= p <= 1")
    if not training or p == 0:
        return x
    key = random.next_key("dropout") if key is None else key
    raw = x.__class__ not in TENSORS
    if raw:
        x = tensor(x)
    keep = random.bernoulli(key, x, 1.0 - p)
    scale = x.dtype.type(0.0 if p == 1 else 1.0 / (1.0 - p))
    y = x * (Tensor(keep.array * scale, keep.layout) if keep.__class__ in TENSORS else Tensor(keep * scale))
    return y.array if raw and state.grid is None else y


class Dropout(Module):
    """`dropout` with the thread's next key at every call.

    Parameters
    ----------
    p : float
    along : str or sequence of str
        Mesh axes on which the ranks hold values of their own (Varying), and drop elements of their own.
    """

    def __init__(self, p: float = 0.5, *, along: str | Sequence[str] = ()):
        self.p = p
        self.along = (along,) if isinstance(along, str) else tuple(along)

    def forward(self, x: Any) -> Any:
        return dropout(x, self.p, random.next_key("dropout").along(*self.along))


def save(module: Module, path: str | os.PathLike[str]) -> None:
    """Write this process's parameters to an ``.npz`` file, whole or not at all.

    Examples
    --------
    >>> import tempfile, os
    >>> from autograd import nn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = nn.Linear(2, 1)
    ...     nn.save(model, os.path.join(folder, "model.npz"))
    ...     nn.load(model, os.path.join(folder, "model.npz"))
    """
    target = os.fspath(path)
    part = f"{target}.{os.getpid()}.part"
    try:
        with open(part, "wb") as file:
            np.savez(file, allow_pickle=False, **module.state_dict())
        os.replace(part, target)
    finally:
        if os.path.exists(part):
            os.remove(part)


def load(module: Module, path: str | os.PathLike[str]) -> None:
    """Read parameters that `save` wrote into a module of the same names and shapes."""
    with np.load(path, allow_pickle=False) as file:
        module.load_state_dict({name: file[name] for name in file.files})
