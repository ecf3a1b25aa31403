"""Comparison of the parts of a Shard: equal data on all ranks are probably whole rows that nobody has divided.

`autograd.tensor` and `from_local` take the label Shard for this rank's part. If all ranks pass the same data, each row
counts once per rank, and nothing else is wrong with the program. So of each line of the program the digest of the 1st,
2nd, 4th, 8th, ... such array travels with the fingerprint of a next call along the axis (as that of an addend does, see
`addends`), without a further message. If the digests are equal, one rank warns (`ReplicaWarning`).

Not compared are constants, such as zeros, and few whole numbers, such as the classes of some rows: they may be equal on
all ranks by chance. Parameters are compared at the first backward (see `collectives.replicas`).

The same is done with a Varying operand that has an element for each of a part beside it. If it is equal on all ranks,
it is probably counted from zero on each, as positions and masks are that are made for the length of a part.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd.arrays.device import to_host
from autograd.arrays.shape_only import Shaped
from autograd.engine.state import state
from autograd.engine.tensor import TENSORS
from autograd.errors import ReplicaWarning, find_site
from autograd.layouts.layout import R, Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.names import name_of, variable_of

from .reports import warn_once
from .sanitizer import Addend, digest_of

__all__ = ["Part", "expect_different", "expect_different_beside"]

_FEW = 64  # whole numbers

class Part(Addend):
    """This rank's part of a Shard, as the addend of a later call: see `Addend`. Its digest is 0 if nothing is compared.

    `is_sent` is whether a call has carried it, so that `is_equal` is known when the call has returned.
    """

    __slots__ = ("array", "axis", "how", "is_sent", "layout", "site")

    def __init__(self, digest: int, how: str, x: Any, axis: str, site: tuple[str, int]):
        super().__init__(digest)
        self.how, self.array, self.layout, self.axis, self.site = how, x.array, x.layout, axis, site
        self.is_sent = False

    def warn(self, size: int) -> None:
        """Warn that the ranks along the axis hold equal parts."""
        name, axis, label = variable_of(self.array) or "rows", repr(self.axis), self.layout[self.axis]
        dim = f", dim={label.dim}" if label.dim else ""
        warn_once(
            f"{self.how}({name}: {describe(self.array, self.array.shape, self.layout)}): the {size} ranks of axis "
            f"{axis} pass equal data. By its label {label!r} each rank holds another part of one value, so a sum over "
            f"the parts counts these data {size} times. Has every rank the whole?\n"
            f"  fix: cc.shard(ag.tensor({name}, layout={{{axis}: {R!r}}}), {axis}{dim})   (this rank's part of it)\n"
            f"  or:  pass data of its own on each rank, for example other rows, or a draw from another seed",
            ReplicaWarning, self.site,
        )  # fmt: skip


def expect_different(how: str, x: Any) -> None:
    """Record a part that a line of the program has labelled, for a next call along each axis that divides it."""
    if how not in ("tensor", "from_local"):
        return
    mesh, layout, site, digest = state.mesh, x.layout, None, None
    if mesh is None or layout is None or layout.grid is not mesh.grid or type(x.array) is Shaped:
        return
    for axis in mesh.known_axes:
        checks = axis.group.checks
        if checks is None or not checks.takes_parts or len(axis.names) > 1:
            continue
        (name,) = axis.names
        if type(layout[name]) is Shard:
            site = site or find_site()
            line = site, layout, x.array.dtype, len(x.array.shape)
            if checks.is_line_due(line):
                digest = _digest(to_host(x.array)) if digest is None else digest
                checks.parts.append(Part(digest, how, x, name, site))


class Beside(Part):
    """A Varying operand beside a part, where an operation combines their elements."""

    __slots__ = ("name", "of_part")

    def __init__(self, digest: int, operation: str, x: Any, label: Shard, axis: str, site: tuple[str, int]):
        super().__init__(digest, operation, x, axis, site)
        self.of_part, self.name = label, name_of(x, "") or "x"

    def warn(self, size: int) -> None:
        name, axis = self.name, repr(self.axis)
        extent = self.of_part.extent or "of the whole"
        warn_once(
            f"{self.how}({name}: {describe(self.array, self.array.shape, self.layout)}): the {size} ranks of axis "
            f"{axis} combine equal values with different parts, {self.of_part!r}. By its label each rank holds other "
            f"values. Is it made for the length of a part, as positions that count from 0 on every rank?\n"
            f"  fix: make the whole, for all {extent}, and divide it, as positions by "
            f"cc.shard(ag.constant(numpy.arange({extent})), {axis})\n"
            f"  or:  leave it so, if the elements of every part are meant to meet the same values",
            ReplicaWarning, self.site,
        )  # fmt: skip


def expect_different_beside(mesh: Any, operation: str, x: Any, out: Any) -> None:
    """Record a Varying operand beside the parts of a result, for a next call along each axis that divides it."""
    if out.grid is not mesh.grid or x.__class__ not in TENSORS or x.layout is None:
        return
    if type(x.array) is Shaped:
        return
    for axis in mesh.known_axes:
        checks = axis.group.checks
        if checks is None or not checks.takes_parts or len(axis.names) > 1:
            continue
        (name,) = axis.names
        label = out[name]
        if x.layout[name] is V and type(label) is Shard:
            site = find_site()
            line = site, operation, x.layout, x.array.dtype, len(x.array.shape)
            if checks.is_line_due(line):
                checks.parts.append(Beside(_digest(to_host(x.array), True), operation, x, label, name, site))


def _digest(host: Any, may_count: bool = False) -> int:
    """The digest of a part; 0 for one that may be equal on all ranks. With `may_count`, 0, 1, 2, ... may not."""
    kinds = "fciub" if may_count else "fciu"
    if not host.size or host.dtype.kind not in kinds or bool((host == host.reshape(-1)[0]).all()):
        return 0
    if host.size < _FEW and (host.dtype.kind == "b" or bool((host == host.round()).all())):
        if not may_count or host.size < 3 or host.dtype.kind == "b" or bool((np.diff(host.reshape(-1)) != 1).any()):
            return 0
    return digest_of(host) or 1
