"""`parallelize`: divide an ordinary model over a mesh by a plan, which maps patterns of module names to styles.

    plan = {"*.qkv": Column("tp", blocks=3), "*.proj": Row("tp"), "*.up": Column("tp"), "*.down": Row("tp")}
    model = parallelize(gpt(config, key), plan)

A *style* replaces a module by one that does the same with parameters of which each rank holds a part. Everything else
of the model stays as it is. The plan takes the model as it is made on one process, with whole parameters, so each
rank's part is a slice of the serial model's initial value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from autograd import nn
from autograd.engine.leaves import Parameter
from autograd.engine.state import state
from autograd.errors import ArgumentError, LayoutError, OptionError, ShapeError
from autograd.layouts.layout import I, Shard
from autograd.layouts.messages import describe
from autograd.layouts.partition import labels_of_parts, level
from collectives import Mesh

__all__ = ["Shards", "Style", "parallelize"]

Model = TypeVar("Model", bound=nn.Module)


class Style(Protocol):
    """A way to divide a module, which `parallelize` calls to replace it."""

    def apply(self, module: nn.Module, path: str, shards: Shards) -> nn.Module:
        """The module that takes the place of `module`, whose path in the model is `path`.

        Parameters
        ----------
        module : Module
            Modules inside of it that a pattern matches are replaced already.
        path : str
            For error messages, and for random keys that depend on the place in the model.
        shards : Shards
            Makes this rank's parts of the parameters.

        Returns
        -------
        Module
            It may be `module`, changed.
        """


class Shards:
    """Makes this rank's parts of parameters. A parameter that several modules share (tied weights) is divided once.

    Parameters
    ----------
    mesh : Mesh

    Attributes
    ----------
    mesh : Mesh
    """

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self._made: dict[int, _Division] = {}

    def divide(self, p: Parameter, axis: str, dim: int, blocks: int = 1, unit: int = 1) -> Parameter:
        """I -> Shard(dim): this rank's part of a parameter, as a new parameter.

        Formula: ``y_r = part_r(p)``, the parts of ``numpy.array_split`` in multiples of `unit`. All ranks must hold the
        whole parameter; nothing is sent, and nothing is recorded.

        Parameters
        ----------
        p : Parameter
            I on the axis. Labels of other axes are kept.
        axis : str
        dim : int
            The dimension that is divided.
        blocks : int
            With more than one, the dimension consists of this number of blocks of equal widths, like the queries, keys
            and values of a fused projection, and each block is divided: a dimension of ``blocks * w`` is stored as
            two, ``[..., blocks, w / p, ...]``, of which the second is divided. The whole value is a reshape of `p`.
        unit : int
            The extent of each part is a multiple of it, like the width of a head.

        Returns
        -------
        Parameter
            Shard(dim), or ``Shard(dim + 1)`` with blocks. The name is that of `p`.

        Raises
        ------
        LayoutError
            `p` is not I on the axis, another axis divides the dimension, or `p` was divided in another way before.
        ShapeError
            `p` has no dimension `dim`, or its extent is no multiple of `blocks` and `unit`.
        MeshError
            The mesh has no such axis.

        Examples
        --------
        >>> import autograd as ag, collectives as cc
        >>> from parallel.plan import Shards
        >>> def program():
        ...     with cc.Mesh(tp=2) as mesh:
        ...         part = Shards(mesh).divide(ag.Parameter([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), "tp", 0, blocks=3)
        ...         return part.numpy().tolist()
        >>> cc.run(program, ranks=2)
        [[[0.0], [2.0], [4.0]], [[1.0], [3.0], [5.0]]]
        """
        key = axis, dim % max(p.array.ndim, 1), blocks, unit
        known = self._made.get(id(p))
        if known is None:
            known = self._made[id(p)] = _Division(p, key, self._part(p, *key))
        elif known.key != key:
            text = [f"along {a!r}, dimension {d}, blocks={b}, unit={u}" for a, d, b, u in (known.key, key)]
            raise LayoutError(
                f"divide({p.name or 'a parameter'}: {describe(p.array, p.array.shape, p.layout)}): two modules share "
                f"it. For one of them it was divided {text[0]}, for the other {text[1]}; needed: the same division\n"
                "  fix: a style of the same axis for both, as Vocabulary(axis) for an embedding and the linear layer "
                "tied to it"
            )
        return known.part

    def wholes(self) -> list[Parameter]:
        """The whole parameters of which parts were made."""
        return [each.whole for each in self._made.values()]

    def _part(self, p: Parameter, axis: str, dim: int, blocks: int, unit: int) -> Parameter:
        grid = self.mesh.grid
        k = grid.axis(axis)
        size, place = grid.sizes[k], int(grid.place[k])
        layout = p.labelled(grid)
        shape = tuple(int(n) for n in p.array.shape)
        name = p.name or "a parameter"
        if layout[axis] is not I:
            raise LayoutError(
                f"divide({name}: {describe(p.array, shape, layout)}, axis {axis!r})\n  axis {axis!r}: the parameter is "
                f"{layout[axis].word}; needed: Invariant\n  fix: the plan divides whole parameters: leave the label of "
                f"axis {axis!r} out of the Parameter's layout"
            )
        for other, label in layout.items():
            if isinstance(label, Shard) and label.dim == dim:
                raise LayoutError(
                    f"divide({name}: {describe(p.array, shape, layout)}, axis {axis!r}, dim={dim})\n  axis {other!r}: "
                    f"it divides dimension {dim} already; needed: one axis for each dimension\n  fix: another "
                    "dimension, or divide it over one axis only"
                )
        if not shape or blocks < 1 or unit < 1 or shape[dim] % (blocks * unit):
            raise ShapeError(
                f"divide({name}: {describe(p.array, shape, layout)}, axis {axis!r}, dim={dim}, blocks={blocks}, "
                f"unit={unit}): needed: an extent of dimension {dim} that is a multiple of blocks * unit = "
                f"{blocks * unit}"
            )
        width = shape[dim] // blocks
        extents = level(width, size, unit)
        array = p.array
        if blocks > 1:
            array = array.reshape(*shape[:dim], blocks, width, *shape[dim + 1 :])
            labels = [x.on(x.dim + 1) if isinstance(x, Shard) and x.dim > dim else x for x in layout.labels]
            layout, dim = grid.layout(labels), dim + 1
        at = sum(extents[:place])
        part = array[(slice(None),) * dim + (slice(at, at + extents[place]),)]
        made = Parameter(part, name=p.name, requires_grad=p.requires_grad)
        label = Shard(dim, width, at, unit) if unit > 1 else labels_of_parts(dim, extents, [size], [place])[0]
        made.layout = layout.replace((axis,), label)
        made.is_transposed = p.is_transposed if blocks == 1 else None
        return made


class _Division(NamedTuple):
    whole: Parameter  # kept, so that its id is not used again
    key: tuple[str, int, int, int]
    part: Parameter


def parallelize(model: Model, plan: Mapping[str, Style], mesh: Mesh | None = None) -> Model:
    """Replace modules of a model by modules that are divided over a mesh, and return the model.

    Parameters
    ----------
    model : Module
        An ordinary model with whole parameters, equal on all ranks. Its modules are replaced in place. A pattern that
        matches the model itself, like ``"*"`` for a single layer, gives another module.
    plan : mapping from str to Style
        Patterns of module paths (``fnmatch``: ``*`` matches dots, too), and how the modules that they match are
        divided. The paths are those of `named_modules`: the names of parameters without the last part.
    mesh : Mesh, optional
        The default is the current mesh. Without a mesh the model stays as it is.

    Returns
    -------
    Module
        Make optimizers from its parameters: those from before are no longer its own.

    Raises
    ------
    OptionError
        A pattern matches no module, or a module is matched by two patterns. The message names similar paths.
    ArgumentError
        A style does not fit a module.
    LayoutError
        A weight that is divided is shared with a module that no pattern matches, or that divides it otherwise.
    ShapeError
        A dimension cannot be divided.
    ReplicaMismatch
        The parameters that are divided differ between ranks.
    MeshError
        A style names an axis that the mesh does not have.

    Notes
    -----
    Nothing is sent but digests of the parameters, which are compared. If an error is raised, the model is as before.

    Examples
    --------
    >>> import autograd as ag, collectives as cc, numpy
    >>> from autograd import nn, random
    >>> from parallel import Column, Row, parallelize
    >>> def program():
    ...     model = nn.Sequential(nn.Linear(4, 6, key=random.Key(0)), nn.ReLU(), nn.Linear(6, 2, key=random.Key(1)))
    ...     with cc.Mesh(tp=2):
    ...         parallelize(model, {"0": Column("tp"), "2": Row("tp")})
    ...         y = model(ag.constant(numpy.ones((3, 4), "float32")))
    ...         return [p.shape for p in model.parameters()], y.shape
    >>> cc.run(program, ranks=2)[0]
    ([(4, 3), (3,), (3, 2), (2,)], (3, 2))
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"parallelize: {model!r} was given; needed: a Module")
    if not isinstance(plan, Mapping):
        raise ArgumentError(
            f"parallelize: plan={plan!r} was given; needed: a mapping from pattern to style\n"
            '  fix: {"*.up": Column("tp"), "*.down": Row("tp")}'
        )
    for pattern, style in plan.items():
        if not isinstance(pattern, str) or isinstance(style, type) or not callable(getattr(style, "apply", None)):
            raise ArgumentError(
                f"parallelize: {pattern!r}: {style!r} was given; needed: a pattern of module paths and a style, an "
                'object with a method apply(module, path, shards)\n  fix: {"*.up": Column("tp")}'
            )
    found = _matches(model, plan)
    mesh = state.mesh if mesh is None else mesh
    if mesh is None:
        return model
    if not isinstance(mesh, Mesh):
        raise ArgumentError(f"parallelize: mesh={mesh!r} was given; needed: a Mesh")
    dict(model.named_parameters())  # names the parameters
    shards, slots = Shards(mesh), _slots(model)
    replaced: list[tuple[nn.Module, nn.Module]] = []
    whole: Any = model
    try:
        for module, path, style in found:
            made = style.apply(module, path, shards)
            if not isinstance(made, nn.Module):
                raise ArgumentError(f"{style!r}.apply gave {made!r} for {path!r}; needed: a Module")
            if made is not module and "training" in vars(module):
                made.train(module.training)
            _put(slots, module, made)
            replaced.append((module, made))
            whole = made if module is model else whole
        _refuse_shared(whole, shards)
        _advise(whole, found)
        mesh.check_replicas(shards.wholes())
    except BaseException:
        for module, made in reversed(replaced):
            slots[id(made)] = slots.get(id(module), [])
            _put(slots, made, module)
        raise
    result: Model = whole
    return result


def _paths(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Iterate over (path, module) of a module and all below, each at every path that it has."""
    yield path, module
    for name, child in module.named_children():
        yield from _paths(child, f"{path}.{name}" if path else name)


def _matches(model: nn.Module, plan: Mapping[str, Style]) -> list[tuple[nn.Module, str, Style]]:
    """The modules that the patterns match, inner ones before those that contain them, each once."""
    paths = list(_paths(model))
    found: dict[int, tuple[nn.Module, str, str]] = {}
    for pattern in plan:
        matched = [(path, module) for path, module in paths if fnmatchcase(path, pattern)]
        if not matched:
            _refuse_unmatched(pattern, [path for path, _ in paths if path])
        for path, module in matched:
            _, first, known = found.setdefault(id(module), (module, path, pattern))
            if known != pattern:
                raise OptionError(
                    f"parallelize: the patterns {known!r} and {pattern!r} both match {first!r}, a "
                    f"{type(module).__name__}; needed: one style for each module\n  fix: patterns that match fewer "
                    "modules, or one of the two"
                )
    ordered = sorted(found.values(), key=lambda each: each[1].count(".") + bool(each[1]), reverse=True)
    return [(module, path, plan[pattern]) for module, path, pattern in ordered]


def _advise(model: nn.Module, found: list[tuple[nn.Module, str, Style]]) -> None:
    """Tell whole layers beside a divided one, which may get its parts, what their errors are to say of the plan."""
    divided = [path for _, path, _ in found]
    whole = [(path, module) for path, module in _paths(model) if path not in divided]
    for module, path, style in found:
        after = getattr(style, "followed_by", None)
        if after is None or type(module) is not nn.Linear:
            continue
        for beside, child in whole:
            is_beside = beside.rpartition(".")[0] == path.rpartition(".")[0]
            if is_beside and any(module.weight.array.shape[1] in p.array.shape for p in child.parameters()):
                fix = f'"{beside}": {after}' if type(child) is nn.Linear else f"{after} for the layer after {path!r}"
                child._advice = (
                    f"\n  {path!r} is divided by {style!r}, and gives parts of the features; the plan has no style for "
                    f"{beside!r}\n  fix: {fix} in the plan"
                )


def _refuse_unmatched(pattern: str, paths: list[str]) -> NoReturn:
    wanted = pattern.rsplit(".", 1)[-1].strip("*")
    last = {path.rsplit(".", 1)[-1]: path for path in reversed(paths)}
    close = [last[name] for name in get_close_matches(wanted, last, 3, 0.5)]
    close += [path for path in get_close_matches(pattern, paths, 3, 0.5) if path not in close]
    shown = close or paths
    text = ", ".join(map(repr, shown[:5])) + (", ..." if len(shown) > 5 else "")
    why = "similar paths" if close else "its paths"
    raise OptionError(
        f"parallelize: the pattern {pattern!r} matches no module of the model; {why}: {text or 'none'}\n"
        "  fix: a pattern of a module's path, the name of its parameter without the last part"
    )


Slots = dict[int, list[tuple[nn.Module, str]]]
"""By the id of a module: the modules that hold it, and the attribute, which may be a list, a tuple or a dictionary."""


def _slots(model: nn.Module) -> Slots:
    """The places of all modules below the model."""
    slots: Slots = {}
    for owner in model.modules():
        for attribute, value in vars(owner).items():
            items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            for item in items:
                if isinstance(item, nn.Module):
                    slots.setdefault(id(item), []).append((owner, attribute))
    return slots


def _put(slots: Slots, module: nn.Module, made: nn.Module) -> None:
    """Put `made` into all places of `module`."""
    for owner, attribute in slots.get(id(module), ()):
        value = vars(owner)[attribute]
        if isinstance(value, list | dict):
            for at, item in list(enumerate(value) if isinstance(value, list) else value.items()):
                value[at] = made if item is module else item
        elif isinstance(value, tuple):
            setattr(owner, attribute, tuple(made if item is module else item for item in value))
        else:
            setattr(owner, attribute, made)


def _refuse_shared(model: nn.Module, shards: Shards) -> None:
    """Raise LayoutError if the model still has a parameter of which a style has made parts."""
    wholes = {id(p): p for p in shards.wholes()}
    for path, owner, _, p in model.named_owners():
        if id(p) in wholes:
            raise LayoutError(
                f"parallelize: {path}, of a {type(owner).__name__} that no pattern matches, is the same weight as "
                f"{p.name}, which the plan divides. They would become two weights; needed: one division for all uses\n"
                f"  fix: a pattern for {path.rpartition('.')[0]!r}, too, with a style of the same axis"
            )
