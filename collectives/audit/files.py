"""Files of an audit: the arrays of a job's ranks at each optimizer step, and the places of their pieces.

A folder has a file ``rank-R/step-S.npz`` for each rank and step; `collector` lists the keys. `write` makes one, so that
jobs of MPI, JAX and ringtape can be judged, too.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from autograd.errors import ArgumentError, typed_errors

from .collector import FORM, keep, step_file
from .hook.start import slices

__all__ = ["Box", "Cut", "Step", "boxes", "piece_of", "read_map", "read_steps", "write"]

Box = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""A box of a piece: its start in the piece, its extents, and its start in the global array."""


@dataclass(frozen=True)
class Cut:
    """A dimension of a parameter that ranks along an axis of the mesh share.

    Attributes
    ----------
    axis : str
    dim : int
    parts : int
        In how many parts the dimension is cut first, each of which the ranks share: 3 for a matrix with the weights of
        queries, keys and values.
    """

    axis: str
    dim: int
    parts: int = 1


@dataclass
class Step:
    """The arrays of one rank at one step of an optimizer.

    Attributes
    ----------
    meta : dict
    arrays : mapping
        By key: arrays, which are read when they are asked for.
    """

    meta: dict[str, Any]
    arrays: Mapping[str, Any]

    def get(self, kind: str, name: str) -> Any:
        """The array of a parameter, as float64 at least; None if the rank has none."""
        if kind == "grad" and self.clip is not None:
            kind = "old"
        key = f"{kind}:{name}"
        if key not in self.arrays:
            return None
        x = np.asarray(self.arrays[key])
        return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)

    @cached_property
    def clip(self) -> float | str | None:
        """The factor by which all gradients were clipped at last, "bound" if by their values; None if they were not."""
        factors: list[float] = []
        names = [key.removeprefix("old:") for key in self.arrays if key.startswith("old:")]
        is_bound = not set(names).isdisjoint(self.meta["bounds"])
        for name in names:
            old, new = (np.asarray(self.arrays[f"{kind}:{name}"]) for kind in ("old", "grad"))
            top = np.abs(old).max(initial=0)
            if name in self.meta["bounds"] or not top:
                continue
            at = np.unravel_index(np.abs(old).argmax(), old.shape)
            factors.append(float(np.real(new[at] / old[at])))
            if not np.abs(new - old * factors[-1]).max() <= 1e-3 * top * abs(factors[-1]):
                return None  # what came after it was no multiple: a sum over the ranks, say
        if not factors or is_bound:
            return "bound" if is_bound else None
        number = max(factors[0], 1 / factors[0]) if factors[0] > 0 else 0.0
        is_count = abs(number - round(number)) < 1e-6 * number  # of ranks or microbatches, or a scale of the loss
        alike = all(abs(each - factors[0]) <= 1e-3 * abs(factors[0]) for each in factors)
        return factors[0] if alike and not is_count else None

    @property
    def names(self) -> list[str]:
        return list(self.meta["names"])


@typed_errors
def write(
    folder: str | Path,
    rank: int,
    size: int,
    step: int,
    gradients: Mapping[str, Any],
    parameters: Mapping[str, Any] | None = None,
    updates: Mapping[str, Any] | None = None,
    *,
    loss: float | None = None,
    norm: float | None = None,
) -> Path:
    """Write the arrays of a rank at a step, for `python -m collectives audit judge`.

    Parameters
    ----------
    folder : path
        Of the job. Each rank writes files of its own.
    rank, size, step : int
        Counted from 0.
    gradients, parameters, updates : mapping of str to array_like
        By name, in the order of the model: what the optimizer is given, the values before the step, and what it adds.
        A rank gives its own pieces.
    loss : float, optional
        The number from which backward started.
    norm : float, optional
        The norm of all gradients by which they were clipped.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ArgumentError
        The rank is not one of `size`.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> path = write(folder, 0, 1, 0, {"w": [1.0, 2.0]}, {"w": [0.0, 0.0]}, loss=0.5)
    >>> path.relative_to(folder).as_posix(), read_steps(folder)[0][0].get("grad", "w")
    ('rank-0/step-0.npz', array([1., 2.]))
    """
    if not 0 <= rank < size:
        raise ArgumentError(f"write: given rank {rank}; needed: one of the {size} ranks, counted from 0")
    kinds = {"grad": gradients, "before": parameters or {}, "update": updates or {}}
    arrays: dict[str, Any] = {f"{kind}:{name}": np.asarray(x) for kind, of in kinds.items() for name, x in of.items()}
    names = list(dict.fromkeys([*kinds["before"], *gradients]))
    meta = {
        "form": FORM, "engine": "", "rank": rank, "size": size, "step": step, "names": names,
        "places": {}, "mesh": {}, "losses": [] if loss is None else [float(loss)],
        "norms": [] if norm is None else [float(norm)], "bounds": [],
        "dtypes": {name: str(np.asarray(gradients[name]).dtype) for name in names if name in gradients},
    }  # fmt: skip
    path = Path(step_file(str(folder), rank, step))
    keep(str(path), meta, arrays)
    return path


@typed_errors
def read_steps(folder: str | Path) -> list[dict[int, Step]]:
    """The steps of a job: for each one, those of its ranks.

    Raises
    ------
    ArgumentError
        There is none, a file is of another form, or they are of runs with different numbers of ranks.
    """
    steps: dict[int, dict[int, Step]] = {}
    sizes: dict[int, Path] = {}
    for path in Path(folder).glob("rank-*/step-*.npz"):
        arrays = np.load(path)
        meta = json.loads(str(arrays["meta"]))
        if meta["form"] != FORM:
            raise ArgumentError(f"{path}: form {meta['form']}; this version reads {FORM}\n  fix: collect again")
        sizes.setdefault(meta["size"], path)
        steps.setdefault(meta["step"], {})[meta["rank"]] = Step(meta, arrays)
    if len(sizes) > 1:
        found = " and ".join(f"{path} of {size} ranks" for size, path in sizes.items())
        raise ArgumentError(f"{folder} has files of several runs: {found}\n  fix: remove it, and collect again")
    if not steps:
        raise ArgumentError(
            f"{folder}: no rank-R/step-S.npz in it\n  fix: give the folder of `audit collect -o`, and check that the "
            "program has run a step of an optimizer"
        )
    return [dict(sorted(steps[at].items())) for at in sorted(steps)]


# -- places ------------------------------------------------------------------------------------------------------------


@typed_errors
def read_map(path: str | Path, mesh: Mapping[str, int]) -> dict[str, tuple[Cut, ...]]:
    """The cuts of parameters from a TOML file: ``"layers.0.qkv.weight" = {axis = "tp", dim = 0, parts = 3}``.

    A name may have ``*`` for any text. A list of tables cuts along several axes, the outer one first.

    Raises
    ------
    ArgumentError
        A word or an axis is unknown, or the path is none of a file.
    """
    found = {}
    if Path(path).exists() and not Path(path).is_file():
        raise ArgumentError(f"{path} is no file; needed: a TOML file with the cuts of parameters")
    for name, given in tomllib.loads(Path(path).read_text()).items():
        tables = given if isinstance(given, list) else [given]
        for table in tables:
            if (
                not isinstance(table, dict)
                or set(table) - {"axis", "dim", "parts"}
                or not {"axis", "dim"} <= set(table)
            ):
                raise ArgumentError(
                    f'{path}: {name} = {given}\n  needed: {{axis = "tp", dim = 0}}, with parts = 3 or not'
                )
            if table["axis"] not in mesh:
                raise ArgumentError(f"{path}: {name} is cut along axis {table['axis']!r}; --mesh has {dict(mesh)}")
        found[name] = tuple(Cut(**table) for table in tables)
    return found


def boxes(shape: Sequence[int], cuts: Sequence[Cut], mesh: Mapping[str, int], at: Mapping[str, int]) -> list[Box]:
    """The boxes of the piece of a rank.

    Parameters
    ----------
    shape : sequence of int
        Of the global array.
    cuts : sequence of Cut
        The outer one first.
    mesh, at : mapping
        By axis: its size, and the coordinate of the rank.

    Examples
    --------
    >>> boxes((6,), [Cut("tp", 0, parts=3)], {"tp": 2}, {"tp": 1})
    [([0], [1], [1]), ([1], [1], [3]), ([2], [1], [5])]
    """
    runs = [[(0, 0, extent)] for extent in shape]  # of each dimension: start in the piece, global start, extent
    for cut in cuts:
        found, here = [], 0
        for _, start, extent in runs[cut.dim]:
            for part in range(cut.parts):
                low, high = part * extent // cut.parts, (part + 1) * extent // cut.parts
                per = -(-(high - low) // mesh[cut.axis])  # as torch.chunk: the last ones may be smaller
                first = min(low + per * at[cut.axis], high)
                last = min(first + per, high)
                found.append((here, start + first, last - first))
                here += last - first
        runs[cut.dim] = found
    made: list[Any] = [([], [], [])]
    for of_dim in runs:
        made = [([*a, at_], [*e, extent], [*g, start]) for a, e, g in made for at_, start, extent in of_dim]
    return made


def piece_of(whole: Any, of: Sequence[Box] | None) -> Any:
    """The piece of a global array; the array itself if the rank has it whole."""
    if of is None:
        return whole
    shape = [max((a[d] + e[d] for a, e, _ in of), default=0) for d in range(whole.ndim)]
    piece = np.empty(shape, whole.dtype)
    for box in of:
        here, there = slices(box)
        piece[here] = whole[there]
    return piece
