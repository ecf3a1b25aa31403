"""`Module`, the base class of layers and models, and its containers.

A module is a class with a `forward`. Its Parameters and submodules are the attributes that hold them, in order of
assignment, and are named by their path ("0.weight"). A buffer is an array that is saved with the parameters but not
learned, such as a running mean.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from inspect import signature
from itertools import islice
from operator import index
from typing import Any, NamedTuple, ParamSpec, Protocol, Self, TypeVar

import numpy as np

from .. import notebook
from ..arrays.capture import refuse
from ..arrays.device import as_array, dtype_named, gpu_named, is_inexact, move, to_device, where_to
from ..arrays.plain import require_plain
from ..engine.events import listeners
from ..engine.leaves import Constant, Leaf, Parameter, constant
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import (
    UNTYPED,
    ArgumentError,
    DtypeError,
    LayoutError,
    OptionError,
    PositionError,
    RingtapeError,
    ShapeError,
    TapeError,
    is_own_file,
    is_raised_inside,
    refused,
    short,
    typed_errors,
)
from ..layouts.layout import C, Layout
from ..random.philox import floating
from ..whole import OwnedState, part_of, sharded_axes, whole_of

__all__ = ["Module", "ModuleDict", "ModuleList", "ParameterList", "Sequential", "in_turn"]

_CONTAINERS = list, tuple, dict, set, frozenset
_ITEMS, _DEPTH = 1000, 3  # of a container that are looked at for parameters: it may hold data


Args = ParamSpec("Args")
Output = TypeVar("Output", covariant=True)


class _Forward(Protocol[Args, Output]):
    """A module, by whose `forward` type checkers check a call of the module."""

    _advice: str

    def forward(self, *args: Args.args, **kwargs: Args.kwargs) -> Output: ...


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


@typed_errors
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
    _others: tuple[str, ...] = ()
    """Attributes that hold parameters of other modules, besides its own."""
    _keeps_names: str = ""
    """The attribute with a module whose parameters and buffers keep their names, as in a wrapper."""
    _advice = ""
    """The reason and the fix of errors about layouts and shapes here, if a plan divides the layer beside this one."""
    training = True
    """Whether the module is in training mode, where dropout drops elements and batch norm uses the batch's statistics.
    Set it by `train` and `eval`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output of the module. Subclasses override this."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __init_subclass__(cls, **words: Any) -> None:
        super().__init_subclass__(**words)
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)  # a notebook has none
        if is_own_file(file or "") and "__init__" in vars(cls):
            cls.__init__ = _typed_errors_of(cls.__init__)  # type: ignore[method-assign]  # the same signature, wrapped

    def __call__(self: _Forward[Args, Output], *args: Args.args, **kwargs: Args.kwargs) -> Output:
        if state.recorder is not None:
            state.recorder.module(self)
        try:
            return self.forward(*args, **kwargs)
        except (LayoutError, ShapeError) as error:
            error.prefer(self._advice)
            raise
        except UNTYPED as error:
            if isinstance(error, RingtapeError) or not is_raised_inside(error, type(self).forward):
                raise
            raise refused(error, type(self).__name__, (*args, *kwargs.values())) from error

    # -- a linear layer and an activation after it as one operation, which saves passes over arrays of a device ------
    def _is_called(self, forward: Any) -> bool:
        """Whether a call runs this method: not one of a subclass, of the instance, or of a parallel model."""
        return getattr(self.forward, "__func__", None) is forward

    def _after_linear(self) -> Any:
        """The operation of a linear layer and this activation; None for other modules."""
        return None

    def _forward_with(self, joint: Any, input: Any) -> Any:
        """The result of `joint` for the weight and bias of this linear layer; NotImplemented for other modules."""
        return NotImplemented

    def _members(self) -> Iterable[tuple[str, Parameter | Module]]:
        """The parameters and modules that this module holds itself, by name, in order of assignment.

        Subclasses override it. All walks over modules are `tree_of`, which asks nothing else of a module.
        """
        found: list[tuple[str, Parameter | Module]] = []
        for attribute, value in vars(self).items():
            if isinstance(value, Parameter | Module):
                found.append((attribute, value))
            elif isinstance(value, list | tuple):
                for i, item in enumerate(value):
                    if isinstance(item, Module):
                        found.append((f"{attribute}.{i}", item))
        return found

    def named_owners(self, prefix: str = "") -> Iterator[tuple[str, Module, str, Parameter]]:
        """Iterate over (path, owner, attribute, Parameter), in order of assignment.

        A parameter that several attributes hold is yielded for each of them.
        """
        for path, owner, attribute, parameter in tree_of(self).parameters:
            yield prefix + path, owner, attribute, parameter

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Iterate over (name, module) of the direct submodules: attributes, and items of lists and tuples."""
        for name, member in self._members():
            if isinstance(member, Module):
                yield name, member

    def children(self) -> Iterator[Module]:
        """Iterate over the direct submodules, each once."""
        yield from {id(child): child for _, child in self.named_children()}.values()

    def named_modules(self, *, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Iterate over (path, module) of this module and all its submodules, each once. Its own path is `prefix`."""
        start = prefix + "." if prefix else ""
        for path, module in tree_of(self).modules:
            yield start + path if path else prefix, module

    def modules(self) -> Iterator[Module]:
        """Iterate over this module and all its submodules, each once."""
        for _, module in tree_of(self).modules:
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

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Add a buffer: an attribute that is saved with the parameters, if it is persistent, but not learned.

        It is an array, or `tensor` itself if that is a constant or has labels: ``ag.constant(mask)`` stays the same on
        all ranks. It may later be assigned like any attribute.
        """
        vars(self).setdefault("_buffers", {})
        self._buffers: dict[str, bool] = {**self._buffers, name: bool(persistent)}
        if _is_computed_constant(tensor):
            tensor = Constant(tensor.array, tensor.layout)
        has_labels = tensor.__class__ in TENSORS and (isinstance(tensor, Constant) or tensor.layout is not None)
        setattr(self, name, tensor if tensor is None or has_labels else as_array(_plain(tensor)))

    def buffer(self, name: str) -> Any:
        """Return a buffer as an operand of operations. On a mesh an array is equal on all ranks by declaration."""
        value = getattr(self, name)
        return value if value.__class__ in TENSORS or state.grid is None else constant(value)

    def set_buffer(self, name: str, value: Any) -> None:
        """Assign a value to a buffer without recording it. On a mesh the buffer gets the value's layout.

        The second run of a checkpointed function leaves the buffer as it is.
        """
        if state.repeats:
            return
        refuse(f"the buffer {name!r} of a module was assigned", "evaluation mode, or a layer without running averages")
        plain = value.__class__ not in TENSORS or value.layout is None
        array = value.array if value.__class__ in TENSORS else value
        require_plain(array, f"the buffer {name!r} of {type(self).__name__}")
        setattr(self, name, array if plain else Leaf(array, value.layout))

    def named_buffer_owners(self, prefix: str = "") -> Iterator[tuple[str, Module, str]]:
        """Iterate over (path, owner, attribute) of all buffers that are not None."""
        for path, owner, attribute in tree_of(self).buffers:
            yield prefix + path, owner, attribute

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """Iterate over (path, value) of all buffers that are not None; the arguments are `named_parameters`'."""
        seen: set[int] = set()
        for path, owner, attribute in tree_of(self).buffers:
            value = getattr(owner, attribute)
            if (recurse or owner is self) and not (remove_duplicate and id(value) in seen):
                seen.add(id(value))
                yield f"{prefix}.{path}" if prefix else path, value

    def buffers(self, recurse: bool = True) -> Iterator[Any]:
        """Iterate over all buffers that are not None."""
        for _, value in self.named_buffers(recurse=recurse):
            yield value

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
        if not isinstance(mode, bool | np.bool_):
            raise ArgumentError(f"train: mode={short(mode)} was given; needed: True or False")
        for module in self.modules():
            module.training = bool(mode)
        return self

    def eval(self) -> Self:
        """Set evaluation mode, ``train(False)``: no dropout, and batch norm uses its running statistics."""
        return self.train(False)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Iterate over (name, Parameter). A parameter without a name gets its path as its name.

        Parameters
        ----------
        prefix : str
            The path of this module, with which all names begin.
        recurse : bool
            Whether those of submodules are included.
        remove_duplicate : bool
            Whether a parameter that several attributes hold is yielded once only.

        Raises
        ------
        ArgumentError
            At the end: a learned parameter is in a list, tuple or dict that the module does not see, and no attribute
            holds it; or a module with such parameters in a dict.
        """
        tree, seen = tree_of(self), set[int]()
        for path, owner, _, parameter in tree.parameters:
            if (recurse or owner is self) and not (remove_duplicate and id(parameter) in seen):
                seen.add(id(parameter))
                parameter.name = parameter.name or path
                yield f"{prefix}.{path}" if prefix else path, parameter
        tree.refuse_unseen()

    def parameters(self, recurse: bool = True) -> list[Parameter]:
        """Return all parameters, each once, in order of assignment; without `recurse` not those of submodules."""
        if recurse:
            return [parameter for _, _, parameter in tree_of(self).named().values()]
        return [parameter for _, parameter in self.named_parameters(recurse=False)]

    def to(
        self, *args: Any, dtype: Any = None, device: str | None = None, non_blocking: bool = False
    ) -> Self:
        """Convert all floating parameters and buffers to a dtype, move them to a device, and return the module.

        Complex ones become complex numbers of that precision.

        Parameters
        ----------
        *args
            A dtype, a device, both, or a Tensor or array, whose dtype and device are meant.
        dtype : dtype, optional
            float64, float32, float16 or "bfloat16", which needs ml_dtypes.
        device : str, optional
            "cpu", or with CuPy "cuda", the current GPU of this thread, or "cuda:0". The state of an optimizer that has
            taken steps stays where it was: move the module before.
        non_blocking : bool
            Ignored.

        Raises
        ------
        DtypeError
            The dtype is not floating.
        OptionError
            The device is unknown.
        DependencyError
            CuPy is not installed.
        DeviceError
            The device is a GPU that does not exist, or is not the current one of this thread.
        TapeError
            A tape still needs the present value of a parameter.

        Examples
        --------
        >>> from autograd import nn
        >>> nn.Linear(2, 1).to("float64").weight.dtype
        dtype('float64')
        """
        dtype, device = where_to(args, dtype, device, "Module.to")
        found = None if dtype is None else dtype_named(dtype) if dtype == "bfloat16" else floating(dtype, "Module.to")
        for name, p in self.named_parameters():
            _refuse_use("Module.to", name, p)
            p.array = _converted(p.array, found, device)
            g = p.grad
            if g is not None:
                p._grad = Tensor(_converted(g.array, found, device), g.layout)
        for _, owner, attribute in self.named_buffer_owners():
            value = getattr(owner, attribute)
            if value.__class__ in TENSORS:
                kind = Constant if isinstance(value, Constant) else Leaf
                setattr(owner, attribute, kind(_converted(value.array, found, device), value.layout))
            else:
                setattr(owner, attribute, _converted(value, found, device))
        return self

    def float(self) -> Self:
        """Convert all floating parameters and buffers to float32, and return the module."""
        return self.to(dtype=np.float32)

    def double(self) -> Self:
        """Convert all floating parameters and buffers to float64, and return the module."""
        return self.to(dtype=np.float64)

    def bfloat16(self) -> Self:
        """Convert all floating parameters and buffers to bfloat16, and return the module."""
        return self.to(dtype="bfloat16")

    def half(self) -> Self:
        """Convert all floating parameters and buffers to float16, and return the module."""
        return self.to(dtype=np.float16)

    def cpu(self) -> Self:
        """Move all parameters and buffers to the host, and return the module."""
        return self.to(device="cpu")

    def cuda(self, device: int | str | None = None) -> Self:
        """Move all parameters and buffers to a GPU, by default the current one, and return the module."""
        return self.to(device=gpu_named(device))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None.

        Raises
        ------
        OptionError
            `set_to_none` is not True: a gradient of zeros is not made.
        """
        if set_to_none is not True:
            raise OptionError(f"zero_grad: set_to_none={set_to_none!r} was given; needed: True")
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

    def _repr_html_(self) -> str:
        """The same for notebooks, as a tree with the numbers of elements of the parameters."""
        total = _elements(self)
        frozen = sum(int(p.array.size) for p in _parameters_of(self) if not p.requires_grad)
        note = f"{total:,} elements in {len(_parameters_of(self))} parameters"
        note += f", {frozen:,} frozen" if frozen else ""
        return notebook.sheet(type(self).__name__, note, *_branches(self, 0))

    def _values(self) -> list[tuple[str, Any, Layout | None]]:
        """The name, array and layout of all parameters and persistent buffers."""
        tree = tree_of(self)
        found = [(name, p.array, p.layout) for name, (_, _, p) in tree.named().items()]
        for name, (owner, attribute) in tree.saved_buffers().items():
            value = getattr(owner, attribute)
            found.append((name, value.array, value.layout) if value.__class__ in TENSORS else (name, value, None))
        return found

    def stores_transposed(self, attribute: str) -> bool:
        """Whether a parameter of this module is stored [in, out], the transpose of torch's. Subclasses override it."""
        return False

    def blocks_of(self, attribute: str) -> int:
        """In how many blocks a parameter of this module has what is one dimension in torch: its last two are [blocks,
        width]. Subclasses override it."""
        return 1

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Set all parameters and buffers from a `state_dict`. If it raises, nothing has been changed.

        Each rank takes its part of a whole value, whatever number of ranks has saved it. A Tensor with the labels of a
        parameter is this rank's part already. A value that is a tensor of torch is transposed where torch's module of
        this name stores it so: ``model.load_state_dict(torchs_model.state_dict())``. An array is not.

        Parameters
        ----------
        state_dict : mapping from name to array
        strict : bool
            Whether names that are missing or unknown are an error. The others are ignored otherwise.
        assign : bool
            Only False: parameters keep their dtypes, and stay the objects that an optimizer has.

        Returns
        -------
        missing_keys, unexpected_keys : list of str

        Raises
        ------
        ShapeError
            Names are missing or unknown, with `strict`, or shapes differ from those of the whole values.
        LayoutError
            A parameter is a Shard whose extents the ranks have not agreed on.
        DtypeError
            One of the arrays is integer and the other floating, or numbers would lose more than rounding: complex ones
            that become real, or fractions that become integers.
        TapeError
            A tape still needs the present value of a parameter.
        OptionError
            `assign` is not False.

        Examples
        --------
        >>> from autograd import nn
        >>> model = nn.Linear(2, 1)
        >>> model.load_state_dict(nn.Linear(2, 1).state_dict())
        <All keys matched successfully>
        >>> model.load_state_dict({"weight": [[1.0], [2.0]]}, strict=False)
        IncompatibleKeys(missing_keys=['bias'], unexpected_keys=[])
        """
        if assign is not False:
            raise OptionError(f"load_state_dict: assign={assign!r} was given; needed: False")
        keys, commit = self._prepared(state_dict, strict)
        commit()
        return keys

    def prepare_state_dict(self, state_dict: Mapping[str, Any]) -> Callable[[], None]:
        """Check a `state_dict` as `load_state_dict` does, and return the function that sets it. `nn.load` calls it."""
        return self._prepared(state_dict, True)[1]

    def attached(self) -> Iterator[tuple[str, Any]]:
        """Iterate over (name, object) of what this module, without its submodules, has besides parameters and buffers.

        `nn.save` and `nn.load` call the objects' ``state_dict`` and ``load_state_dict``. Subclasses override it.
        """
        yield from ()

    def _prepared(self, state_dict: Mapping[str, Any], strict: bool) -> tuple[IncompatibleKeys, Callable[[], None]]:
        """The names that do not match, and the function that sets the state."""
        given, tree = dict(state_dict), tree_of(self)
        parameters, buffers = tree.named(), tree.saved_buffers()
        names = [*parameters, *buffers]
        keys = IncompatibleKeys([x for x in names if x not in given], [x for x in given if x not in names])
        faults = []
        if strict and keys.unexpected_keys:
            faults.append(f"Unexpected key(s) in state_dict: {_quoted(keys.unexpected_keys)}. ")
        if strict and keys.missing_keys:
            faults.insert(0, f"Missing key(s) in state_dict: {_quoted(keys.missing_keys)}. ")
        arrays: dict[str, Any] = {}
        for name, (owner, attribute, p) in parameters.items():
            if name in given:
                is_torchs = type(given[name]).__module__.partition(".")[0] == "torch"
                turned = is_torchs and owner.stores_transposed(attribute)
                value = _new_parameter(name, p, given[name], turned, state_dict, faults)
                if value is not None:
                    arrays[name] = value
        for name, buffer in buffers.items():
            if name in given:
                value = _new_buffer(name, getattr(*buffer), given[name], state_dict, faults)
                if value is not None:
                    arrays[name] = value
        if faults:
            title = f"Error(s) in loading state_dict for {type(self).__name__}:"
            raise ShapeError("\n\t".join([title, *faults]))

        def commit() -> None:
            for name, value in arrays.items():
                if name in parameters:
                    parameters[name][2].array = value
                else:
                    setattr(*buffers[name], value)

        return keys, commit


class Tree(NamedTuple):
    """A module and all its submodules, and what they hold, by path: the result of `tree_of`.

    Attributes
    ----------
    modules : list of (str, Module)
        Each once.
    parameters : list of (str, Module, str, Parameter)
        The path, the module and the attribute that hold it. One that several attributes hold is there for each.
    buffers : list of (str, Module, str)
        The same of the buffers that are not None.
    containers : list of (Module, str, container)
        The attributes that are lists, tuples, sets or dicts.
    """

    modules: list[tuple[str, Module]]
    parameters: list[tuple[str, Module, str, Parameter]]
    buffers: list[tuple[str, Module, str]]
    containers: list[tuple[Module, str, Any]]

    def named(self) -> dict[str, tuple[Module, str, Parameter]]:
        """The owner, attribute and value of each parameter, by its first path: its name, if it has no other one.

        Raises
        ------
        ArgumentError
            See `Module.named_parameters`.
        """
        seen: set[int] = set()
        found = {}
        for path, owner, attribute, parameter in self.parameters:
            if id(parameter) not in seen:
                seen.add(id(parameter))
                parameter.name = parameter.name or path
                found[path] = owner, attribute, parameter
        self.refuse_unseen()
        return found

    def saved_buffers(self) -> dict[str, tuple[Module, str]]:
        """The owner and attribute of each persistent buffer, by path."""
        return {path: (owner, name) for path, owner, name in self.buffers if owner._buffers[name]}

    def refuse_unseen(self) -> None:
        """Raise ArgumentError for a learned parameter in a list, tuple, set or dict that no attribute holds."""
        held = {id(p) for *_, p in self.parameters}
        modules = {id(module) for _, module in self.modules}
        for owner, attribute, value in self.containers:
            waiting = [] if attribute in owner._others else [(f".{attribute}", value, _DEPTH)]
            for place, container, depth in waiting:
                items = container.items() if isinstance(container, dict) else enumerate(container)
                for key, item in islice(items, _ITEMS):
                    if isinstance(item, Parameter | Module):
                        if id(item) in modules or id(item) in held:
                            continue
                        inside = [item] if isinstance(item, Parameter) else item.parameters()
                        if any(p.requires_grad and id(p) not in held for p in inside):
                            _refuse_container(owner, attribute, value, f"{place}[{key!r}]", item)
                    elif depth > 1 and isinstance(item, _CONTAINERS):
                        waiting.append((f"{place}[{key!r}]", item, depth - 1))


def tree_of(module: Module) -> Tree:
    """Walk over a module and all below it, once."""
    found = Tree([], [], [], [])
    seen: set[int] = set()
    above: set[int] = set()

    def visit(module: Module, path: str, names: str) -> None:
        """Add a module at a path. The paths of its parameters begin with `names`."""
        if id(module) in above:  # a module that holds one which holds it
            return
        if id(module) not in seen:
            seen.add(id(module))
            found.modules.append((path, module))
            for name, value in vars(module).items():
                if isinstance(value, _CONTAINERS):
                    found.containers.append((module, name, value))
        for attribute in getattr(module, "_buffers", ()):
            if getattr(module, attribute) is not None:
                found.buffers.append((names + attribute, module, attribute))
        above.add(id(module))
        start = f"{path}." if path else ""
        for name, member in module._members():
            if isinstance(member, Parameter):
                found.parameters.append((names + name, module, name, member))
            else:
                visit(member, start + name, names if name == module._keeps_names else f"{names}{name}.")
        above.remove(id(module))

    visit(module, "", "")
    return found


def _refuse_container(owner: Module, attribute: str, value: Any, place: str, item: Parameter | Module) -> None:
    here, name = f"self.{attribute}", type(owner).__name__
    what = "a Parameter" if isinstance(item, Parameter) else f"the module {type(item).__name__}"
    if isinstance(value, list | tuple) and isinstance(item, Parameter) and place.count("[") == 1:
        fix = f"{here} = nn.ParameterList({here})"
    elif isinstance(value, dict) and isinstance(item, Module) and place.count("[") == 1:
        fix = f"{here} = nn.ModuleDict({here})"
    elif isinstance(item, Parameter):
        fix = "an attribute for each: self.name = parameter, or setattr(self, name, parameter)"
    else:
        fix = "an attribute for each, or nn.ModuleList"
    learned = "requires_grad = False" if isinstance(item, Parameter) else "requires_grad_(False)"
    raise ArgumentError(
        f"{name}: self{place} is {what} in a container that the module does not see, and no attribute holds it: an "
        "optimizer would not update it, ranks would not sum its gradient, and files would not have it\n"
        f"  fix: {fix}\n  or:  self{place}.{learned}, if it is not learned"
    )


class IncompatibleKeys(NamedTuple):
    """The result of `Module.load_state_dict`: the names that the state lacked, and those that the module has not."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


def _new_parameter(
    name: str, p: Parameter, given: Any, turned: bool, state_dict: Mapping[str, Any], faults: list[str]
) -> Any:  # fmt: skip
    """The new array of a parameter that a state has, `turned` if it is transposed there; None if it does not fit."""
    value = _fitting(given.T if turned else given, p.array, p.layout, name, faults)
    if value is None:
        return None
    if value.dtype != p.array.dtype and is_inexact(value.dtype) != is_inexact(p.array.dtype):
        raise DtypeError(f"load_state_dict: {name} has dtype {value.dtype}; needed: {p.array.dtype}")
    _refuse_use("load_state_dict", name, p)
    return move(OwnedState.with_dtype(state_dict, given, value, p.array.dtype), p.array)


def _new_buffer(name: str, have: Any, given: Any, state_dict: Mapping[str, Any], faults: list[str]) -> Any:
    """The new value of a buffer that a state has, of the buffer's kind and layout; None if it does not fit."""
    layout = have.layout if have.__class__ in TENSORS and sharded_axes(have.layout) else None
    array = have.array if have.__class__ in TENSORS else have
    value = _fitting(given, array, layout, name, faults)
    if value is None:
        return None
    value = OwnedState.with_dtype(state_dict, given, value, array.dtype)
    if isinstance(have, Constant) or _is_computed_constant(have):
        return Constant(value, have.layout)
    return value if layout is None else Leaf(value, layout)


def _is_computed_constant(x: Any) -> bool:
    """Whether a value was computed on a mesh from constants alone, like a view of one."""
    if x.__class__ not in TENSORS or isinstance(x, Leaf) or x.layout is None:
        return False
    return all(label is C for label in x.layout.labels)


def _quoted(names: list[str]) -> str:
    return ", ".join(json.dumps(name, ensure_ascii=False) for name in names)  # a name of a file may have line breaks


def _fitting(value: Any, array: Any, layout: Layout | None, name: str, faults: list[str]) -> Any:
    """This rank's part of a value of a state, or None, with a line in `faults`, if its shape is another one."""
    try:
        return part_of(value, array, layout, "load_state_dict", name)
    except ShapeError as error:
        if sharded_axes(layout):
            faults.append(error.reason)
            return None
        given, need = tuple(np.shape(value)), tuple(array.shape)
        is_turned = len(need) == 2 and given == need[::-1]
        turned = "\n\t  fix: its transpose: here it is stored [in, out]" if is_turned else ""
        faults.append(
            f"size mismatch for {name}: copying a param with shape {given} from checkpoint, the shape in current model "
            f"is {need}.{turned}"
        )
        return None


def _refuse_use(caller: str, name: str, p: Parameter) -> None:
    """Raise TapeError if a tape still needs the value of a parameter, which is about to be replaced."""
    if type(p.array) is np.ndarray and not p.array.flags.writeable:
        raise TapeError(f"{caller}: a tape still needs {name}. Fix: call it after backward")


def _converted(array: Any, dtype: Any, device: str | None) -> Any:
    """An array of a dtype, if it is floating, and on a device, if one is given."""
    if dtype is not None and array.dtype.kind == "c":  # complex numbers of that precision, and not their real parts
        dtype = np.result_type(dtype, np.complex64) if dtype.kind == "f" else array.dtype
    if dtype is not None and is_inexact(array.dtype) and array.dtype != dtype:
        array = array.astype(dtype)
    return array if device is None else to_device(array, device)


def _plain(x: Any) -> Any:
    """The array of a Tensor, and anything else as it is."""
    return x.array if x.__class__ in TENSORS else x


def _parameters_of(module: Module) -> list[Parameter]:
    """The parameters, each once. Unlike `Module.parameters` it gives them no names."""
    return list({id(p): p for *_, p in module.named_owners()}.values())


def _elements(module: Module) -> int:
    return sum(int(p.array.size) for p in _parameters_of(module))


def _branches(module: Module, depth: int) -> list[str]:
    """The entries of a module in the tree: its own parameters, and its submodules."""
    entries = []
    for _, owner, name, p in module.named_owners():
        if owner is module:
            layout = "" if p.layout is None else f" {p.layout!r}"
            entries.append(notebook.branch(name, f"{tuple(map(int, p.array.shape))} {p.array.dtype}{layout}"))
    for name, child in module.named_children():
        extra = child.extra_repr()
        inner = _branches(child, depth + 1)
        elements = f"{_elements(child):,} elements" if inner else ""
        entries.append(notebook.branch(f"{name}: {type(child).__name__}({extra})", elements, inner, depth < 1))
    return entries


def _is_plain(value: Any) -> bool:
    """Whether a value is short to print: a number, a text, a dtype, or a tuple or list of these."""
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | np.dtype | type)


@typed_errors
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
            raise PositionError(f"{type(self).__name__}: index {place} was given; it has {n} modules")
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

    def _members(self) -> Iterable[tuple[str, Module]]:
        return [(str(i), module) for i, module in enumerate(self.layers)]


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

    def forward(self, input: Any) -> Tensor:
        if input.__class__ in TENSORS and input.array.__class__ is not np.ndarray:
            return in_turn(input, *self.layers)
        for module in self.layers:
            try:
                input = module.forward(input)
            except (LayoutError, ShapeError) as error:
                error.prefer(module._advice)
                raise
        return input


@typed_errors
def in_turn(input: Any, *modules: Module) -> Tensor:
    """Apply modules one after another, as `Sequential` does, to modules that have names of their own.

    On a GPU a linear layer and the activation after it (ReLU, GELU, SiLU) are one operation, whose kernel adds the bias
    on the way: two passes over the array less in forward, and one less in backward. A module whose class has a
    `forward` of its own is called.

    Parameters
    ----------
    input : Tensor or array
    *modules : Module

    Returns
    -------
    Tensor

    Raises
    ------
    ArgumentError
        One of them is no Module.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> up, down = nn.Linear(4, 8), nn.Linear(8, 4)
    >>> nn.in_turn(numpy.ones((2, 4), numpy.float32), up, nn.GELU(), down).shape
    (2, 4)
    """
    is_joined = input.__class__ in TENSORS and input.array.__class__ is not np.ndarray and not listeners
    left = iter(zip(modules, [*modules[1:], None], strict=True)) if modules else iter(())
    for module, after in left:
        if not isinstance(module, Module):
            raise ArgumentError(f"in_turn: {short(module)} was given; needed: Modules, each as an argument of its own")
        joint = after._after_linear() if is_joined and isinstance(after, Module) else None
        try:
            found = NotImplemented if joint is None else module._forward_with(joint, input)
            if found is NotImplemented:
                input = module.forward(input)
            else:
                input = found
                next(left)  # the activation is done
        except (LayoutError, ShapeError) as error:
            error.prefer(module._advice)
            raise
    return input


@typed_errors
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
    >>> heads.sign is heads["sign"]
    True
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

    def __getattr__(self, name: str) -> Any:
        """A module by its key, as torch has it: ``heads.digits`` is ``heads["digits"]``."""
        found = vars(self).get("by_key", {})
        if name not in found:
            raise AttributeError(f"ModuleDict has no attribute and no module {name!r}; its modules: {', '.join(found)}")
        return found[name]

    def __setitem__(self, key: str, module: Module) -> None:
        if not isinstance(key, str) or not isinstance(module, Module):
            raise RingtapeError(f"ModuleDict: {key!r}: {module!r} was given; needed: a text and a Module")
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

    def _members(self) -> Iterable[tuple[str, Module]]:
        return self.by_key.items()


@typed_errors
class ParameterList(Module):
    """A list of parameters, as an attribute of a module. They are named by their positions ("0").

    A plain list of Parameters is not seen by the module that has it.

    Raises
    ------
    ArgumentError
        An item is no Parameter.
    PositionError
        An index is out of range.

    Examples
    --------
    >>> import numpy, autograd as ag
    >>> from autograd import nn
    >>> class Powers(nn.Module):
    ...     def __init__(self):
    ...         self.weights = nn.ParameterList([ag.Parameter(numpy.ones(2)) for _ in range(3)])
    ...     def forward(self, x):
    ...         for w in self.weights:
    ...             x = x * w
    ...         return x
    >>> [name for name, _ in Powers().named_parameters()]
    ['weights.0', 'weights.1', 'weights.2']
    """

    def __init__(self, values: Iterable[Parameter] = ()):
        self.extend(values)

    def _names(self) -> list[str]:
        return [name for name in vars(self) if name.isdigit()]

    def __len__(self) -> int:
        return len(self._names())

    def __getitem__(self, i: int | slice) -> Any:
        return ParameterList(list(self)[i]) if isinstance(i, slice) else getattr(self, self._place(i))

    def __setitem__(self, i: int, parameter: Parameter) -> None:
        place = self._place(i)
        setattr(self, place, _checked_parameter(place, parameter))

    def _place(self, i: int) -> str:
        n = len(self)
        if not -n <= index(i) < n:
            raise PositionError(f"ParameterList: index {index(i)} was given; it has {n} parameters")
        return str(index(i) % n)

    def __iter__(self) -> Iterator[Parameter]:
        for name in self._names():  # as attributes, whose values a parallel call may have replaced
            yield getattr(self, name)

    def append(self, value: Parameter) -> Self:
        """Add a parameter at the end and return the list."""
        return self.extend([value])

    def extend(self, values: Iterable[Parameter]) -> Self:
        """Add parameters at the end and return the list."""
        n = len(self)
        for i, p in enumerate([_checked_parameter(n + i, p) for i, p in enumerate(values)]):
            setattr(self, str(n + i), p)
        return self

    def __iadd__(self, parameters: Iterable[Parameter]) -> Self:
        return self.extend(parameters)


def _checked_parameter(i: Any, parameter: Any) -> Parameter:
    if not isinstance(parameter, Parameter):
        raise ArgumentError(
            f"ParameterList: item {i} is {short(parameter)}; needed: a Parameter\n  fix: ag.Parameter(array)"
        )
    return parameter
