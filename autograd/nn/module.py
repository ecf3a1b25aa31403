"""`Module`, the base class of layers and models, and its containers; saving and loading of parameters.

A module is a class with a `forward`. Its Parameters and submodules are the attributes that hold them, in order of
assignment, and are named by their path ("0.weight"). A buffer is an array that is saved with the parameters but not
learned, such as a running mean.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from inspect import signature
from operator import index
from typing import Any, Self
from uuid import uuid4

import numpy as np

from ..arrays.device import is_inexact, move
from ..engine.parameter import Leaf, Parameter, constant
from ..engine.state import state
from ..engine.tensor import TENSORS
from ..engine.whole import part_of, sharded_axes, whole_of
from ..errors import (
    UNTYPED,
    DtypeError,
    LayoutError,
    PositionError,
    RingtapeError,
    ShapeError,
    TapeError,
    call_site,
    is_own_file,
    is_raised_inside,
    refused,
)
from ..layouts.layout import Layout, P, V

__all__ = ["Module", "ModuleDict", "ModuleList", "Sequential", "load", "save"]


def _typed_errors_of(made: Any) -> Any:
    """The ``__init__`` of a module of ringtape, with typed errors."""

    @wraps(made)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self).__init__ is call:  # not that of a base class, which a subclass calls
            self._given = args, kwargs
        try:
            made(self, *args, **kwargs)
        except UNTYPED as error:
            if isinstance(error, RingtapeError):
                raise
            raise refused(error, type(self).__name__, (*args, *kwargs.values())) from error

    return call


class Module:
    """Base class of all modules: override `forward`, and assign Parameters and Modules as attributes.

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

    __slots__ = ("__dict__", "__weakref__", "_given")  # what `__init__` got, for `repr`; no attribute with modules
    _given: tuple[tuple[Any, ...], dict[str, Any]]
    training = True
    """Whether the module is in training mode, where dropout drops elements and batch norm uses the batch's statistics.
    Set it by `train` and `eval`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output of the module. Subclasses override this."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __init_subclass__(cls, **words: Any) -> None:
        super().__init_subclass__(**words)
        if is_own_file(sys.modules[cls.__module__].__file__ or "") and "__init__" in vars(cls):
            cls.__init__ = _typed_errors_of(cls.__init__)  # type: ignore[method-assign]  # the same signature, wrapped

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.forward(*args, **kwargs)
        except UNTYPED as error:
            if isinstance(error, RingtapeError) or not is_raised_inside(error, type(self).forward):
                raise
            raise refused(error, type(self).__name__, (*args, *kwargs.values())) from error

    def named_owners(self, prefix: str = "") -> Iterator[tuple[str, Module, str, Parameter]]:
        """Iterate over (path, owner, attribute, Parameter), in order of assignment.

        A parameter that several attributes hold is yielded for each of them.
        """
        for attribute, value in vars(self).items():
            if isinstance(value, Parameter):
                yield prefix + attribute, self, attribute, value
            else:
                for name, child in _modules_in(attribute, value):
                    yield from child.named_owners(f"{prefix}{name}.")

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Iterate over (name, module) of the direct submodules: attributes, and items of lists and tuples."""
        for attribute, value in vars(self).items():
            yield from _modules_in(attribute, value)

    def children(self) -> Iterator[Module]:
        """Iterate over the direct submodules, each once."""
        yield from {id(child): child for _, child in self.named_children()}.values()

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Iterate over (path, module) of this module and all its submodules, each once. Its own path is `prefix`."""
        seen: set[int] = set()
        stack: list[tuple[str, Module]] = [(prefix, self)]
        while stack:
            path, module = stack.pop()
            if id(module) not in seen:
                seen.add(id(module))
                yield path, module
                start = path + "." if path else ""
                stack.extend(reversed([(start + name, child) for name, child in module.named_children()]))

    def modules(self) -> Iterator[Module]:
        """Iterate over this module and all its submodules, each once."""
        for _, module in self.named_modules():
            yield module

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` on each submodule and then on this module, as for initialising weights, and return the module.

        Examples
        --------
        >>> from autograd import nn
        >>> def narrow(module):
        ...     if isinstance(module, nn.Linear):
        ...         nn.init.normal_(module.weight, std=0.02)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).apply(narrow)
        >>> bool(abs(model[0].weight.numpy()).max() < 0.2)
        True
        """
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def register_buffer(self, name: str, value: Any) -> None:
        """Add a buffer: an attribute that is saved with the parameters but not learned.

        It may later be assigned like any attribute.
        """
        vars(self).setdefault("_buffers", ())
        self._buffers: tuple[str, ...] = (*self._buffers, name)
        setattr(self, name, None if value is None else np.asarray(value))

    def buffer(self, name: str) -> Any:
        """Return a buffer as an operand of operations. On a mesh an array is equal on all ranks by declaration."""
        value = getattr(self, name)
        return value if value.__class__ in TENSORS or state.grid is None else constant(value)

    def set_buffer(self, name: str, value: Any) -> None:
        """Assign a value to a buffer without recording it. On a mesh the buffer gets the value's layout."""
        plain = value.__class__ not in TENSORS or value.layout is None
        array = value.array if value.__class__ in TENSORS else value
        setattr(self, name, array if plain else Leaf(array, value.layout))

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, Module, str]]:
        """Iterate over (path, owner, attribute) of all buffers that are not None."""
        for attribute in getattr(self, "_buffers", ()):
            if getattr(self, attribute) is not None:
                yield prefix + attribute, self, attribute
        for name, child in self.named_children():
            yield from child.named_buffers(f"{prefix}{name}.")

    def buffers(self) -> Iterator[Any]:
        """Iterate over all buffers that are not None."""
        for _, owner, attribute in self.named_buffers():
            yield getattr(owner, attribute)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether all parameters are learned, and return the module. A frozen one gets no gradient and no update.

        Examples
        --------
        >>> from autograd import nn
        >>> model = nn.Sequential(nn.Linear(4, 8).requires_grad_(False), nn.Linear(8, 2))
        >>> [name for name, p in model.named_parameters() if p.requires_grad]
        ['1.weight', '1.bias']
        """
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def train(self, mode: bool = True) -> Self:
        """Set `training` of this module and all its submodules, and return the module."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Set evaluation mode, ``train(False)``: no dropout, and batch norm uses its running statistics."""
        return self.train(False)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Iterate over (name, Parameter), each parameter once. A parameter without a name gets its path as its name."""
        seen: set[int] = set()
        for path, _, _, parameter in self.named_owners():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                parameter.name = parameter.name or path
                yield path, parameter

    def parameters(self) -> list[Parameter]:
        """Return all parameters, each once, in order of assignment."""
        return [parameter for _, parameter in self.named_parameters()]

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to None."""
        for parameter in self.parameters():
            parameter.zero_grad()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of all parameters and buffers as host arrays, by name.

        Those that are sharded are gathered from all ranks, so that all ranks along their axes call this together, and
        each gets the whole. Of a Varying value each rank gets its own.

        Raises
        ------
        MeshError
            A value is sharded, and its mesh is not current.
        """
        return {
            name: whole_of(array, layout, f"{type(self).__name__}.state_dict", name)
            for name, array, layout in self._values()
        }

    def extra_repr(self) -> str:
        """The text between the parentheses of ``repr(module)``, for modules without submodules. Subclasses override it.

        By default it has the numbers and texts that the module was made with, of the modules of this package.
        """
        try:
            bound = signature(type(self).__init__).bind(self, *self._given[0], **self._given[1])
        except (AttributeError, TypeError):
            return ""
        _, *given = bound.arguments.items()
        return ", ".join(
            f"{name}={value.__name__ if isinstance(value, type) else repr(value)}" for name, value in given
            if _is_plain(value)
        )  # fmt: skip

    def __repr__(self) -> str:
        """The module's class and arguments, or its submodules, a line each.

        Examples
        --------
        >>> from autograd import nn
        >>> nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        Sequential(
          (0): Linear(in_features=4, out_features=8)
          (1): ReLU()
        )
        """
        children = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self.named_children()]
        extra = self.extra_repr()
        if not children:
            return f"{type(self).__name__}({extra})"
        return "\n  ".join([f"{type(self).__name__}({extra if type(self).extra_repr is not Module.extra_repr else ''}",
                            *children]) + "\n)"

    def _values(self) -> Iterator[tuple[str, Any, Layout | None]]:
        """Iterate over (name, array, layout) of all parameters and buffers."""
        for name, p in self.named_parameters():
            yield name, p.array, p.layout
        for name, owner, attribute in self.named_buffers():
            value = getattr(owner, attribute)
            is_tensor = value.__class__ in TENSORS
            yield name, value.array if is_tensor else value, value.layout if is_tensor else None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set all parameters and buffers from a `state_dict`. If it raises, nothing has been changed.

        Each rank takes its part of a whole value, whatever number of ranks has saved it. A Tensor with the labels of a
        parameter is this rank's part already.

        Raises
        ------
        ShapeError
            Names are missing or unknown, or shapes differ from those of the whole values.
        LayoutError
            A parameter is a Shard whose extents the ranks have not agreed on.
        DtypeError
            One of the arrays is integer and the other floating.
        TapeError
            A tape still needs the present value of a parameter.
        """
        mine = dict(self.named_parameters())
        buffers = {name: (owner, attribute) for name, owner, attribute in self.named_buffers()}
        names = set(mine) | set(buffers)
        missing, unknown = sorted(names - set(state)), sorted(set(state) - names)
        if missing or unknown:
            raise ShapeError(
                f"load_state_dict: missing {missing or 'none'}, unknown {unknown or 'none'}; needed: "
                f"{[*mine, *buffers]}"
            )
        arrays = {}
        for name, p in mine.items():
            value = part_of(state[name], p.array, p.layout, "load_state_dict", name)
            if is_inexact(value.dtype) != is_inexact(p.array.dtype):
                raise DtypeError(f"load_state_dict: {name} has dtype {value.dtype}; needed: {p.array.dtype}")
            if type(p.array) is np.ndarray and not p.array.flags.writeable:
                raise TapeError(f"load_state_dict: a tape still needs {name}. Fix: load after backward")
            arrays[name] = move(value.astype(p.array.dtype), p.array)
        for name, (owner, attribute) in buffers.items():
            have = getattr(owner, attribute)
            layout = have.layout if have.__class__ in TENSORS and sharded_axes(have.layout) else None
            array = have.array if have.__class__ in TENSORS else have
            value = part_of(state[name], array, layout, "load_state_dict", name).astype(array.dtype)
            arrays[name] = value if layout is None else Leaf(value, layout)
        for name, p in mine.items():
            p.array = arrays[name]
        for name, (owner, attribute) in buffers.items():
            setattr(owner, attribute, arrays[name])


def _is_plain(value: Any) -> bool:
    """Whether a value is short to print: a number, a text, a dtype, or a tuple or list of these."""
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | np.dtype | type)


def _modules_in(attribute: str, value: Any) -> Iterator[tuple[str, Module]]:
    """Iterate over (name, module) of an attribute that is a module, or a list or tuple of modules."""
    if isinstance(value, Module):
        yield attribute, value
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            if isinstance(item, Module):
                yield f"{attribute}.{i}", item


class ModuleList(Module):
    """A list of modules. It has no `forward`; parameters are named by the position of their module ("0.weight").

    Items can be assigned, deleted, inserted and removed as those of a list; a slice is a list of the same class.

    Raises
    ------
    RingtapeError
        An item is not a Module.
    PositionError
        An index is out of range.

    Examples
    --------
    >>> from autograd import nn
    >>> layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    >>> len(layers), [name for name, _ in layers.named_parameters()][-1]
    (3, '2.bias')
    """

    def __init__(self, modules: Iterable[Module] = ()):
        self.layers: list[Module] = []
        self.extend(modules)

    def _checked(self, i: int, module: Any) -> Module:
        if not isinstance(module, Module):
            raise RingtapeError(f"{type(self).__name__}: item {i} is {module!r}; needed: a Module")
        return module

    def _place(self, i: int) -> int:
        """The index as a number from 0."""
        place, n = index(i), len(self.layers)
        if not -n <= place < n:
            raise PositionError(f"{type(self).__name__}: index {place} was given; it has {n} modules" + call_site())
        return place % n

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, i: int | slice) -> Any:
        if not isinstance(i, slice):
            return self.layers[self._place(i)]
        return type(self)(*self.layers[i]) if isinstance(self, Sequential) else type(self)(self.layers[i])

    def __setitem__(self, i: int, module: Module) -> None:
        place = self._place(i)
        self.layers[place] = self._checked(place, module)

    def __delitem__(self, i: int | slice) -> None:
        del self.layers[i if isinstance(i, slice) else self._place(i)]

    def __iter__(self) -> Iterator[Module]:
        return iter(self.layers)

    def __iadd__(self, modules: Iterable[Module]) -> Self:
        return self.extend(modules)

    def append(self, module: Module) -> Self:
        """Add a module at the end and return the list."""
        return self.extend([module])

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end and return the list."""
        n = len(self.layers)
        self.layers += [self._checked(n + i, module) for i, module in enumerate(modules)]
        return self

    def insert(self, i: int, module: Module) -> None:
        """Insert a module before the one at index `i`."""
        self.layers.insert(i, self._checked(i, module))

    def pop(self, i: int = -1) -> Module:
        """Remove the module at an index and return it."""
        return self.layers.pop(self._place(i))

    def named_children(self) -> Iterator[tuple[str, Module]]:
        for i, module in enumerate(self.layers):
            yield str(i), module

    def named_owners(self, prefix: str = "") -> Iterator[tuple[str, Module, str, Parameter]]:
        for i, module in enumerate(self.layers):
            yield from module.named_owners(f"{prefix}{i}.")


class Sequential(ModuleList):
    """Modules applied one after another. Parameters are named by the position of their module ("0.weight").

    Examples
    --------
    >>> from autograd import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [name for name, _ in model.named_parameters()]
    ['0.weight', '0.bias', '2.weight', '2.bias']
    """

    def __init__(self, *modules: Module):
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        for module in self.layers:
            x = module.forward(x)
        return x


class ModuleDict(Module):
    """A dictionary of modules. It has no `forward`; parameters are named by the key of their module ("head.weight").

    Raises
    ------
    RingtapeError
        A value is not a Module, or a key is not a string.

    Examples
    --------
    >>> from autograd import nn
    >>> heads = nn.ModuleDict({"digits": nn.Linear(8, 10), "sign": nn.Linear(8, 1)})
    >>> list(heads), [name for name, _ in heads.named_parameters()][0]
    (['digits', 'sign'], 'digits.weight')
    """

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()):
        self.by_key: dict[str, Module] = {}
        self.update(modules)

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_key)

    def __contains__(self, key: object) -> bool:
        return key in self.by_key

    def __getitem__(self, key: str) -> Module:
        return self.by_key[key]

    def __setitem__(self, key: str, module: Module) -> None:
        if not isinstance(key, str) or not isinstance(module, Module):
            raise RingtapeError(f"ModuleDict: {key!r}: {module!r} was given; needed: a text and a Module" + call_site())
        self.by_key[key] = module

    def __delitem__(self, key: str) -> None:
        del self.by_key[key]

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add modules, or replace those of the same keys."""
        for key, module in dict(modules).items():
            self[key] = module

    def pop(self, key: str) -> Module:
        """Remove the module with a key and return it."""
        return self.by_key.pop(key)

    def clear(self) -> None:
        """Remove all modules."""
        self.by_key.clear()

    def keys(self) -> Iterable[str]:
        """The keys, in order of insertion."""
        return self.by_key.keys()

    def values(self) -> Iterable[Module]:
        """The modules, in order of insertion."""
        return self.by_key.values()

    def items(self) -> Iterable[tuple[str, Module]]:
        """Pairs of key and module, in order of insertion."""
        return self.by_key.items()

    def named_children(self) -> Iterator[tuple[str, Module]]:
        yield from self.by_key.items()

    def named_owners(self, prefix: str = "") -> Iterator[tuple[str, Module, str, Parameter]]:
        for key, module in self.by_key.items():
            yield from module.named_owners(f"{prefix}{key}.")


def save(module: Module, path: str | os.PathLike[str]) -> None:
    """Write all parameters and buffers to an ``.npz`` file.

    The file contains whole values, so it can be loaded on any number of ranks. Without a mesh, and for parameters that
    are equal on all ranks, any rank may call it alone. If a parameter is sharded, all ranks along its axes call it
    together: the parts are gathered, and the first rank that gives a path writes its file. Of a Varying parameter the
    file contains this rank's value, and its place on the mesh; each rank gives a path of its own.

    The file is written under another name and then renamed, so that an interrupted call leaves no partial file, and
    several ranks may write the same file.

    Parameters
    ----------
    module : Module
    path : str or path
        The file. It is overwritten.

    Raises
    ------
    MeshError
        A value is sharded, and its mesh is not current.
    RingtapeError
        Another rank could not write the file.

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
    values = {**module.state_dict(), **_own_places(module)}
    axes = {axis for _, _, layout in module._values() for axis in sharded_axes(layout)}
    if not axes:
        _write(values, target)
        return
    group = state.mesh.axis(tuple(axes)).group
    error: OSError | None = None
    if group.exchange(os.fsencode(target)).index(os.fsencode(target)) == group.index:
        try:
            _write(values, target)
        except OSError as failure:
            error = failure
    failures = group.exchange(b"" if error is None else str(error).encode())
    if error is not None:
        raise error
    for rank, text in zip(group.ranks, failures, strict=True):
        if text:
            raise RingtapeError(f"save: rank {rank} could not write the file: {text.decode()}" + call_site())


_PLACES = "places of varying values"
"""The entry of a file with values of one rank: as JSON, this rank's coordinate on each axis on which it has its own."""


def _own_places(module: Module) -> dict[str, np.ndarray]:
    """The entry `_PLACES`, if the module has values of this rank."""
    places: dict[str, int] = {}
    for _, _, layout in module._values():
        if layout is not None:
            for axis, size, place, label in zip(
                layout.grid.names, layout.grid.sizes, layout.grid.place, layout.labels, strict=True
            ):
                if size > 1 and (label is V or label is P):
                    places[axis] = int(place)
    return {_PLACES: np.array(json.dumps(places, sort_keys=True))} if places else {}


def _write(values: dict[str, Any], target: Any) -> None:
    part = f"{os.fsdecode(target)}.{uuid4().hex}.part"  # ranks may be threads of a process, or processes of many hosts
    try:
        with open(part, "wb") as file:
            np.savez(file, allow_pickle=False, **values)
        os.replace(part, target)
    finally:
        if os.path.exists(part):
            os.remove(part)


def load(module: Module, path: str | os.PathLike[str]) -> None:
    """Read parameters and buffers that `save` wrote, on any number of ranks. Each rank takes its part.

    Parameters
    ----------
    module : Module
        It has the parameters and buffers of the module that was saved, in any layout.
    path : str or path
        The file; on all ranks the same, except for Varying parameters.

    Raises
    ------
    LayoutError
        The file contains the Varying values of another place on the mesh.
    ShapeError, DtypeError, TapeError
        See `Module.load_state_dict`.
    """
    with np.load(path, allow_pickle=False) as file:
        values = {name: file[name] for name in file.files}
    saved, mine = values.pop(_PLACES, None), _own_places(module).get(_PLACES)
    if saved is not None and mine is not None and str(saved) != str(mine):
        raise LayoutError(
            f"load({os.fspath(path)!r}): the file contains values of the rank at {saved}; this rank is at {mine}, and "
            "the module is Varying there: each rank has values of its own\n  fix: a path for each rank, in save and in "
            "load: nn.save(model, f'model.{rank}.npz')" + call_site()
        )
    module.load_state_dict(values)
