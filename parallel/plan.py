"""`parallelize`: divide an ordinary model over the ranks of a mesh, by a plan of name patterns.

    parallelize(model, {"*.qkv": Column("tp", blocks=3), "*.proj": Row("tp"), "*.table": Vocabulary("tp")})

A *style* says how a layer is divided. It replaces the layer by one that holds this rank's part of the parameters and
communicates. The rest of the model stays as it is, and parameters keep their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Protocol, TypeVar

import numpy as np

from autograd.engine.parameter import Parameter
from autograd.errors import ArgumentError, LayoutError, OptionError, ShapeError, call_site
from autograd.layouts.layout import Shard
from autograd.layouts.messages import describe
from autograd.layouts.partition import labels_of_parts, nested_parts
from autograd.nn import Module
from collectives import Mesh, current_mesh

__all__ = ["Shards", "Style", "parallelize"]

Model = TypeVar("Model", bound=Module)


class Style(Protocol):
    """How a layer is divided."""

    def apply(self, module: Module, path: str, shards: Shards) -> Module:
        """The layer that takes the place of `module`, whose path is `path`. `shards` divides its parameters."""


class Shards:
    """This rank's parts of parameters. A parameter that several layers hold is divided once.

    Parameters
    ----------
    mesh : Mesh
    """

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self._made: dict[int, tuple[Parameter, tuple[Any, ...], Parameter]] = {}  # the parameter, how, its part
        self._parts: set[int] = set()

    def size(self, axis: str) -> int:
        """The number of ranks along an axis."""
        return self.mesh.axis(axis).size

    def divide(self, p: Parameter, axis: str, dim: int, blocks: int = 1) -> Parameter:
        """This rank's slice of a parameter, with the label ``Shard(dim)`` on the axis.

        With `blocks`, the dimension consists of so many blocks of equal extent, and each of them is divided: the part
        of shape [..., blocks * n, ...] is stored as [..., blocks, n / p, ...] with the label ``Shard(dim + 1)``. So the
        fused projection to queries, keys and values is divided by heads.

        Raises
        ------
        LayoutError
            Another layer has divided the parameter in another way, or it is divided along this dimension already.
        ShapeError
            The dimension does not consist of equal blocks.
        """
        how = axis, dim, blocks
        known = self._made.get(id(p))
        if known is not None:
            if known[1] != how:
                raise LayoutError(
                    f"parallelize: the parameter {p.name or p.array.shape} belongs to several layers. One divides "
                    f"dimension {known[1][1]} along axis {known[1][0]!r}, another dimension {dim} along {axis!r}"
                    "\n  fix: styles that divide a tied parameter in one way, such as Vocabulary for both layers"
                    + call_site()
                )
            return known[2]
        grid, array = self.mesh.grid, p.array
        if id(p) in self._parts:
            raise LayoutError(
                f"parallelize: {p.name or 'a parameter'} is divided already: {describe(array, array.shape, p.layout)}"
                "\n  fix: one call of parallelize for a model, with all styles in one plan" + call_site()
            )
        if array.shape[dim] % blocks:
            raise ShapeError(
                f"parallelize: {p.name or 'a parameter'} of shape {array.shape} has extent {array.shape[dim]} in "
                f"dimension {dim}; needed: a multiple of blocks={blocks}" + call_site()
            )
        if blocks > 1:
            array = array.reshape((*array.shape[:dim], blocks, -1, *array.shape[dim + 1 :]))
            dim += 1
        on = self.mesh.axis(axis)
        extents = nested_parts(array.shape[dim], [on.size])
        start = sum(extents[: int(on.rank)])
        box = (*[slice(None)] * dim, slice(start, start + extents[int(on.rank)]))
        part = Parameter(np.ascontiguousarray(array[box]) if isinstance(array, np.ndarray) else array[box],
                         name=p.name, requires_grad=p.requires_grad)  # fmt: skip
        label = labels_of_parts(dim, extents, [on.size], [int(on.rank)])[0]
        layout = p.labelled(grid)
        for name, other in layout.items():
            if isinstance(other, Shard):
                raise LayoutError(
                    f"parallelize: {p.name or 'a parameter'} is {describe(p.array, p.array.shape, layout)}; needed: a "
                    f"whole parameter\n  axis {name!r}: it is divided already" + call_site()
                )
        part.layout = layout.replace((axis,), label)
        part.is_transposed = p.is_transposed
        self._made[id(p)] = p, how, part
        self._parts.add(id(part))
        return part


def parallelize(model: Model, plan: Mapping[str, Style], mesh: Mesh | None = None) -> Model:
    """Replace the layers that a plan names by divided ones, in place, and return the model.

    Parameters
    ----------
    model : Module
        A model for one process, with the same parameters on every rank.
    plan : mapping from pattern to Style
        Patterns of the paths of modules, as in `fnmatch`: ``"*.up"``, ``"1.qkv"``, ``"[0-9]*.norm?"``. The path of a
        module is the name of its parameters without the last part.
    mesh : Mesh, optional
        By default the current one.

    Returns
    -------
    Module
        `model`, or what a style made of it if a pattern is "".

    Raises
    ------
    OptionError
        A pattern names no module, or two patterns name the same module.
    ArgumentError
        A value of the plan is not a style, or a style does not divide this kind of layer.
    LayoutError
        A parameter that several layers hold is divided in two ways.

    Notes
    -----
    The parts are slices of the parameters that the model has, so a divided model starts from the values of the whole
    one. On axes of one rank the model computes what it did.

    Examples
    --------
    >>> import collectives as cc
    >>> from autograd import nn
    >>> from parallel import Column, Row, parallelize
    >>> def program():
    ...     with cc.Mesh(tp=2):
    ...         model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
    ...         parallelize(model, {"0": Column("tp"), "2": Row("tp")})
    ...         return [(name, p.shape) for name, p in model.named_parameters()]
    >>> cc.run(program, ranks=2)[0]
    [('0.weight', (4, 3)), ('0.bias', (3,)), ('2.weight', (3, 4)), ('2.bias', (4,))]
    """
    if not isinstance(model, Module):
        raise ArgumentError(f"parallelize: {type(model).__name__} was given; needed: a Module" + call_site())
    if not isinstance(plan, Mapping):
        raise ArgumentError(f"parallelize: plan={plan!r}; needed: a mapping from patterns to styles" + call_site())
    for pattern, style in plan.items():
        if not callable(getattr(style, "apply", None)) or isinstance(style, type):
            raise ArgumentError(
                f"parallelize: {pattern!r} has {style!r}; needed: a style\n  fix: {pattern!r}: Column('tp')"
                + call_site()
            )
    shards = Shards(current_mesh() if mesh is None else mesh)
    for name, p in model.named_parameters():
        p.name = p.name or name
    paths = [path for path, _ in _places(model)]
    found: dict[str, tuple[str, Style]] = {}
    for pattern, style in plan.items():
        matched = [path for path in paths if fnmatchcase(path, pattern)]
        if not matched:
            close = get_close_matches(pattern.lstrip("*."), [path for path in paths if path], 4, 0.3)
            raise OptionError(
                f"parallelize: the pattern {pattern!r} names no module of the model\n  needed: patterns of paths such "
                f"as {', '.join(map(repr, close or [path for path in paths if path][:6]))}" + call_site()
            )
        for path in matched:
            if path in found:
                raise OptionError(
                    f"parallelize: the module {path!r} is named by two patterns, {found[path][0]!r} and {pattern!r}; "
                    "needed: one style for a module" + call_site()
                )
            found[path] = pattern, style
    return _replaced(model, "", found, shards, {})


def _places(module: Module, path: str = "") -> list[tuple[str, Module]]:
    """The paths of a module and all modules in it; a module that is held several times has several paths."""
    start = path + "." if path else ""
    return [(path, module), *(each for name, child in module.named_children() for each in _places(child, start + name))]


def _replaced(module: Module, path: str, found: Mapping[str, Any], shards: Shards, made: dict[int, Any]) -> Any:
    """The module with its submodules, and then itself, replaced as `found` says by path."""
    if id(module) in made:  # held in several places
        return made[id(module)][1]
    start = path + "." if path else ""
    children = [(child, _replaced(child, start + name, found, shards, made)) for name, child in module.named_children()]
    changed = {id(child): after for child, after in children if after is not child}
    if changed:
        for name, value in list(vars(module).items()):
            vars(module)[name] = _with(value, changed)
    style = found.get(path)
    after = module if style is None else style[1].apply(module, path, shards)
    made[id(module)] = module, after
    return after


def _with(value: Any, changed: Mapping[int, Any]) -> Any:
    """An attribute of a module with modules replaced, also in lists, tuples and dictionaries."""
    if isinstance(value, Module):
        return changed.get(id(value), value)
    if type(value) in (list, tuple):
        return type(value)(_with(item, changed) for item in value)
    if type(value) is dict:
        return {key: _with(item, changed) for key, item in value.items()}
    return value
