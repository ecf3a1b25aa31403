"""The names that a module's values have in files of torch, and which matrices are transposed there.

The paths of parameters and buffers are torch's. Matrices of `Linear`, of the attention's projections and of the
recurrent cells are [in, out] here and [out, in] there. A parameter that several modules share has a name for each of
them in the state of a torch module, and one here; files have one or several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError, OptionError, ShapeError, typed_errors
from ..whole import OwnedState
from .module import Module, tree_of

__all__ = ["TorchName", "blocks_of", "names_of", "state_from", "to_file", "torch_names"]


class TorchName(NamedTuple):
    """The name of a value in a file, and whether its matrix is stored there as the transpose of that of the module.

    Attributes
    ----------
    name : str
    is_transposed : bool
    """

    name: str
    is_transposed: bool = False


@typed_errors
def torch_names(module: Module, prefix: str = "") -> dict[str, TorchName]:
    """Return the names that a torch module of the same structure has for the parameters and buffers of a module.

    Give them to `save` and `load` as `names`, also with other names in the place of some. A tied parameter has a name
    for each module that uses it; `save` writes the first.

    Parameters
    ----------
    module : Module
    prefix : str
        The path of the module in the one of the file, with a point at its end, such as "transformer.".

    Returns
    -------
    dict
        From the name here to the name there, and whether the matrix is transposed there.

    Examples
    --------
    >>> from autograd import nn
    >>> nn.torch_names(nn.Linear(2, 1), prefix="head.")["weight"]
    TorchName(name='head.weight', is_transposed=True)
    """
    tree = tree_of(module)
    found = {
        path: TorchName(prefix + path, owner.stores_transposed(attribute) or (
            owner.blocks_of(attribute) > 1 and p.array.ndim == 3
        ))
        for path, owner, attribute, p in tree.parameters
    }  # fmt: skip
    return found | {path: TorchName(prefix + path) for path in tree.saved_buffers()}


def _paths(module: Module) -> dict[str, list[str]]:
    """By name in the module's state: all paths of the value, that of a tied parameter in each module."""
    tree = tree_of(module)
    names = {id(p): name for name, (_, _, p) in tree.named().items()}
    found: dict[str, list[str]] = {name: [] for name in names.values()}
    for path, _, _, p in tree.parameters:
        found[names[id(p)]].append(path)
    return found | {path: [path] for path in tree.saved_buffers()}


def names_of(module: Module, names: Any, caller: str) -> dict[str, TorchName]:
    """The argument `names` of `save` and `load` by path: "torch", "ringtape", or a mapping.

    Raises
    ------
    ArgumentError, OptionError
        It is none of them; or it lacks a value, has an unknown one, or has one name for two.
    """
    paths = _paths(module)
    known = [path for each in paths.values() for path in each]
    if isinstance(names, str) and names in ("torch", "ringtape"):
        return torch_names(module) if names == "torch" else {path: TorchName(path) for path in known}
    if not isinstance(names, Mapping):
        raise ArgumentError(
            f"{caller}: names={names!r} was given; needed: 'torch', 'ringtape', or a mapping as nn.torch_names returns"
        )
    found = _as_names(names, caller)
    unknown, missing = [x for x in found if x not in known], [x for x in paths if x not in found]
    if unknown or missing:
        raise OptionError(
            f"{caller}: names has {unknown or 'nothing'} that {type(module).__name__} has not, and lacks "
            f"{missing or 'nothing'}\n  fix: nn.torch_names(module) | {{...}}, in which some are replaced"
        )
    taken: dict[str, str] = {}
    for path in paths:
        other = taken.setdefault(found[path].name, path)
        if other != path:
            raise OptionError(f"{caller}: names has {found[path].name!r} for {other!r} and for {path!r}")
    return found


def _as_names(names: Mapping[str, Any], caller: str) -> dict[str, TorchName]:
    found = {path: TorchName(x) if isinstance(x, str) else x for path, x in names.items()}
    for path, x in found.items():
        if not isinstance(x, TorchName) or not isinstance(x.name, str):
            raise ArgumentError(f"{caller}: names[{path!r}] is {x!r}; needed: a text or an nn.TorchName")
    return found


def to_file(array: Any, name: TorchName, blocks: int, caller: str) -> Any:
    """A value of a module as a file has it, where the blocks of a divided layer (`Module.blocks_of`) are side by side.

    Raises
    ------
    ShapeError
        It is to be transposed, and is no matrix.
    """
    return _turned(array.reshape(*array.shape[:-2], -1) if blocks > 1 else array, name, caller)


def _from_file(array: Any, name: TorchName, blocks: int, ndim: int, caller: str) -> Any:
    """A value of a file as the module has it, with this number of dimensions."""
    array = _turned(array, name, caller)
    is_whole = blocks > 1 and array.ndim == ndim - 1 and array.shape[-1] % blocks == 0
    return array.reshape(*array.shape[:-1], blocks, -1) if is_whole else array


def _turned(array: Any, name: TorchName, caller: str) -> Any:
    if not name.is_transposed:
        return array
    if np.ndim(array) != 2:
        raise ShapeError(
            f"{caller}: {name.name} has shape {np.shape(array)}; needed: a matrix, because it is to be transposed"
        )
    return np.ascontiguousarray(array.T)


def blocks_of(module: Module) -> dict[str, int]:
    """By path of a parameter: `Module.blocks_of`."""
    return {path: owner.blocks_of(attribute) for path, owner, attribute, _ in module.named_owners()}


def state_from(
    file: Any, entries: Sequence[str], module: Module, names: Any, ignore: Iterable[str], caller: str
) -> OwnedState:
    """Read the state of a module from entries of a file (`Archive` or `Weights`), by their names there.

    Raises
    ------
    ShapeError
        The file lacks a value, or has one that is neither the module's nor ignored; or the entries of a tied parameter
        differ.
    OptionError
        The orientation of the matrices is not known, or the file says another one.
    """
    patterns = [ignore] if isinstance(ignore, str) else list(ignore)
    has = {x: None for x in entries if not any(fnmatchcase(x, pattern) for pattern in patterns)}  # in their order
    known = _names_in(file, has, module, caller) if names is None else names_of(module, names, caller)
    held = _held(known, has, module)
    _check_entries(held, known, has, module, caller)
    for each in held.values():
        for x in each:
            _check_orientation(file, x, caller)
    state, blocks = OwnedState(), blocks_of(module)
    ndims = {name: p.array.ndim for name, p in module.named_parameters()}
    for name, of_value in held.items():
        first, *rest = (_from_file(file.array(x.name), x, blocks.get(name, 1), ndims.get(name, 0), caller)
                        for x in of_value)  # fmt: skip
        for x, again in zip(of_value[1:], rest, strict=True):
            if not np.array_equal(first, again, equal_nan=again.dtype.kind in "fcV"):
                raise ShapeError(
                    f"{caller}: {of_value[0].name} and {x.name} differ, and {type(module).__name__} has one tied "
                    f"parameter for them\n  fix: ignore=[{x.name!r}], if the first is meant"
                )
        state[name] = first
    return state


def _held(known: Mapping[str, TorchName], has: Any, module: Module) -> dict[str, list[TorchName]]:
    """By path of a value the entries of a file that it has: several, if it is tied."""
    return {
        name: list(dict.fromkeys(known[path] for path in paths if path in known and known[path].name in has))
        for name, paths in _paths(module).items()
    }


def _check_entries(
    held: Mapping[str, list[TorchName]], known: Mapping[str, TorchName], has: Any, module: Module, caller: str
) -> None:
    """Raise ShapeError if the file lacks a value, or has one that nobody takes."""
    used = {x.name for each in held.values() for x in each}
    others = [x for x in has if x not in used]
    missing = [known[name].name for name, each in held.items() if not each]
    if missing or others:
        raise ShapeError(
            f"{caller}: the file lacks {_shown(missing)} of {type(module).__name__}, and has {_shown(others)} besides"
            + _fix(missing, others, has)
        )


def _names_in(file: Any, entries: Iterable[str], module: Module, caller: str) -> dict[str, TorchName]:
    """The names that a file has by its own notes; those of the module, if it has none."""
    found = names_of(module, "ringtape", caller)
    turned = [path for path, x in torch_names(module).items() if x.is_transposed]
    if not file.is_own and turned:
        raise OptionError(
            f"{caller}: the file does not say whether {turned[0]} is stored [in, out], as here, or [out, in], as in "
            "torch\n  fix: names='torch' for the state of a torch module; names='ringtape' if matrices are [in, out], "
            "as those of GPT-2's Conv1D"
        )
    for entry in entries:
        held = file.comment(entry)
        if held.get("name") in found:
            found[held["name"]] = TorchName(entry, held.get("transposed", False) is True)
    return found


def _check_orientation(file: Any, x: TorchName, caller: str) -> None:
    noted = file.comment(x.name).get("transposed")
    if noted is not None and bool(noted) is not x.is_transposed:
        shown = "the transpose of the module's", "as the module's"
        raise OptionError(
            f"{caller}: {x.name} was saved {shown[not noted]}, and names says that it is {shown[bool(noted)]}\n"
            "  fix: leave names out: the file says what its entries are"
        )


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 6 else ""
    return f"{names[:5] if more else names or 'nothing'}{more}"


def _fix(missing: list[str], others: list[str], has: Mapping[str, None]) -> str:
    """A way to load the file, if there is one, as the end of a message."""
    if not missing:
        return f"\n  fix: ignore={others[:6]}, if the module needs none of them"
    for other in others:
        prefix = other.removesuffix(missing[0])
        if prefix != other and all(prefix + name in has for name in missing):
            return f"\n  fix: names=nn.torch_names(module, prefix={prefix!r})"
    return ""
