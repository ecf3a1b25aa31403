"""The statements about a call that ranks compare under ``RINGTAPE_CHECK=ranks``, and the errors that follow.

A rank's *statement* about a call consists of its fingerprint, the operand's layout on all axes, the call site, the
number of the call, and its *copies* since the last statement on the same group. A copy is the digest of a value that is
Replicated, Invariant or constant along the group; it is taken when the value enters a collective, is cast, is declared
(a tensor with such a label) or is made by `constant`. The ranks of a group compare their statements in the same
exchange as the fingerprint. Over MPI that is an all-reduce of one hash; the statements are sent only if the hashes
differ.

- If calls, layouts, numbers or call sites differ, a `CollectiveMismatch` is raised. The call site is the line of the
  program that made the call, and the lines that called the functions around it, up to eight. So two quantities that are
  exchanged by one function of the program are told apart. Call sites are not compared for broadcast, reduce, scatter
  and gather, where the root has a special role, so a program may well use different lines under ``if rank == root``.
- If constants differ, a `ReplicaMismatch` is raised, in the other modes too (see `numbers`). So it is if a tensor
  differs that ``ag.tensor`` has labelled R or I: the other modes compare the 1st, 2nd, 4th, ... tensor of each line.
- If copies differ, a `ReplicaMismatch` is raised. Copies are matched by the line of the program that made or used them,
  so ranks may execute such a line a different number of times. A value that is equal along another axis than that of
  the call is compared at the next call along that other axis.

Every rank of the group compares the same statements, so all ranks raise the same error. Digests are of bytes: copies
that were computed with different rounding count as different.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from autograd.arrays.device import to_host
from autograd.arrays.shape_only import Shaped
from autograd.digests import bytes_of_values
from autograd.engine.state import state
from autograd.errors import CollectiveMismatch, CommunicationError, ReplicaMismatch, find_callers, find_site, short_site
from autograd.layouts.layout import C, D, I, R, Shard
from autograd.layouts.messages import describe

from . import modes, reports
from .channel import MOST
from .reports import MadeCall, rank_list
from .sampling import Order, Place

__all__ = ["Addend", "Copy", "Statement", "compare", "declared", "digest_of", "note_facts", "statement", "witness"]

_EQUAL = frozenset((R, I, C, D))  # labels of values that are the same on all ranks


class Addend:
    """One rank's addend in a call that is compared.

    Attributes
    ----------
    digest : int
        That of its value; 0 if the value is not compared.
    is_equal : bool
        Whether the digests of all ranks were found equal.
    facts : tuple of Copy
        What the ranks' statements say of it: the evidence about its scale, of the kind "scale"; in a call along several
        axes its digest, of the kind "addend". See `collectives.scale`.
    evidence : dict of int to str
        If the evidence of the ranks differs: that of each rank.
    digests : tuple of int
        In a call along several axes, if the digests differ: those of all ranks.
    """

    __slots__ = ("digest", "digests", "evidence", "facts", "is_equal")

    def __init__(self, digest: int, facts: tuple[Copy, ...] = ()):
        self.digest = digest
        self.is_equal = False
        self.facts = facts
        self.evidence: dict[int, str] = {}
        self.digests: tuple[int, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Addend) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


class Copy(NamedTuple):
    """A value that should be equal on all ranks of a group, as one of them saw it: where, what, and its digest.

    `kind` is a key of `_KINDS`: what it is, and the fix if it differs; or that of a fact of an `Addend`. In a statement
    about several calls (see `sampling`) `call` is the number of the one that it was noted before.
    """

    place: str
    text: str
    digest: int
    kind: str = "copy"
    call: int = 0


class Statement(NamedTuple):
    """One rank's statement about a call. In modes other than ``ranks`` it contains the fingerprint and plain facts."""

    call: str
    layout: str = ""
    site: str = ""
    number: int = 0
    copies: tuple[Copy, ...] = ()
    is_full: bool = False  # whether the rank was in ``ranks`` mode
    compares_site: bool = False
    callers: str = ""  # the call sites around `site`, innermost first
    addend: Addend | None = None  # on threads, where a statement is compared with the call that it announces
    places: tuple[Place, ...] = ()  # of the calls of a window that ends with this one

    def encode(self) -> bytes:
        """The statement as bytes, for the transports. A call site that is not yet known is looked up here."""
        return json.dumps(self._replace(site=self.site or short_site(*find_site()))).encode()

    @staticmethod
    def decode(data: bytes) -> Statement:
        """The statement from bytes that `encode` made."""
        decoded = Statement(*json.loads(data))
        return decoded._replace(
            copies=tuple(Copy(*copy) for copy in decoded.copies), places=tuple(Place(*each) for each in decoded.places)
        )


def statement(call: str, layout: str, is_rooted: bool, number: int, seen: list[Copy]) -> Statement:
    """This rank's statement in the current mode. It takes all copies out of the list `seen`."""
    copies: tuple[Copy, ...] = ()
    if seen:
        copies = tuple(seen)
        seen.clear()
    if not modes.watching:
        return Statement(call, copies=copies)
    is_compared = modes.sites and not is_rooted
    return Statement(
        call, layout, short_site(*find_site()), number, copies, True, is_compared, find_callers() if is_compared else ""
    )


def digest_of(array: Any) -> int:
    """A hash of an array's dtype, shape and bytes."""
    host = to_host(array)
    return zlib.crc32(bytes_of_values(host).data, zlib.crc32(f"{host.dtype.str}{array.shape}".encode()))


def witness(how: str, x: Any, is_last: bool = False) -> None:
    """Record a Tensor's digest for every group along which all ranks should hold the same value.

    With `is_last` it replaces the digests of the same place.
    """
    mesh, layout = state.mesh, x.layout
    if mesh is None or layout is None or layout.grid is not mesh.grid or type(x.array) is Shaped:
        return
    if not any(map(_EQUAL.__contains__, layout.labels)):
        return
    copy = None
    for axis in mesh.known_axes:
        checks = axis.group.checks
        if checks is None or (is_last and not checks.is_due):
            continue
        seen = checks.copies
        if len(seen) < MOST and all(layout[name] in _EQUAL for name in axis.names):
            if copy is None:
                name = getattr(x, "name", "") or "x"
                is_text = how in ("key", "order")
                shown = f"{how}({name if is_text else f'{name}: {describe(x.array, x.array.shape, layout)}'})"
                copy = Copy(f"{how} at {short_site(*find_site())}", shown, digest_of(x.array))
                copy = copy._replace(kind=how) if how in _KINDS else copy
            if is_last:
                seen[:] = [each for each in seen if each.place != copy.place]
            seen.append(copy)


def _sample(x: Any) -> None:
    """Record the digest of a tensor that a line of the program has labelled R or I, the 1st, 2nd, 4th, ... time."""
    mesh, layout, site, copy = state.mesh, x.layout, None, None
    if mesh is None or layout is None or layout.grid is not mesh.grid or type(x.array) is Shaped:
        return
    for axis in mesh.known_axes:
        checks = axis.group.checks
        if checks is None or not checks.takes_copies:
            continue
        if all(layout[name] is R or layout[name] is I for name in axis.names):
            site = site or find_site()
            line = site, layout, x.array.dtype, len(x.array.shape)
            if checks.is_line_due(line):
                if copy is None:
                    shown = f"tensor({x.name or 'x'}: {describe(x.array, x.array.shape, layout)})"
                    copy = Copy(f"tensor at {short_site(*site)}", shown, digest_of(x.array), "labelled")
                checks.copies.append(copy)


def compare(
    name: str, ranks: Sequence[int], statements: Sequence[Statement], order: Order | None = None
) -> CommunicationError | None:
    """The error that all members raise if their statements about a call differ; None if they agree.

    Parameters
    ----------
    name : str
        The communicator's name.
    ranks : sequence of int
        The world ranks of its members.
    statements : sequence of Statement
        The statements of the members, in the same order.
    order : Order, optional
        The lines of earlier calls, for statements about several calls.
    """
    is_full = all(each.is_full for each in statements)  # otherwise a rank was still in another mode
    calls = {
        rank: MadeCall(
            f"{each.call} layout={each.layout}" if is_full and each.layout else each.call,
            each.site, each.number, each.callers,
        )
        for rank, each in zip(ranks, statements, strict=True)
    }  # fmt: skip
    text = reports.call_difference(name, calls)
    if text is None and order is not None:
        text = _window_difference(name, ranks, [each.places for each in statements], order)
    if text is None and is_full:
        text = reports.number_difference(name, calls)
        if text is None and all(each.compares_site for each in statements):
            text = reports.line_difference(name, calls)
    return _unequal_copies(name, ranks, statements) if text is None else CollectiveMismatch(text)


def note_facts(addend: Addend, ranks: Sequence[int], statements: Sequence[Statement]) -> None:
    """Set what the ranks have stated of an addend, where their statements differ.

    Its digests are set if all ranks state one, its evidence if this rank has stated some.
    """
    digests = [[copy.digest for copy in each.copies if copy.kind == "addend"] for each in statements]
    if all(len(each) == 1 for each in digests):
        addend.digests = tuple([digest for (digest,) in digests])
    if any(copy.kind == "scale" for copy in addend.facts):
        addend.evidence = {
            rank: next((copy.text for copy in each.copies if copy.kind == "scale"), "")
            for rank, each in zip(ranks, statements, strict=True)
        }  # fmt: skip


def _window_difference(
    name: str, ranks: Sequence[int], windows: Sequence[Sequence[Place]], order: Order
) -> str | None:
    """The text about the first call that differs in the ranks' windows, or about two calls in swapped order."""
    if not windows[0] or len(set(map(len, windows))) > 1:
        return None
    text = reports.first_call_difference(
        name,
        {
            rank: (0, [MadeCall(place.call, place.site) for place in places])
            for rank, places in zip(ranks, windows, strict=True)
        },
    )
    swap = order.learn(windows) if text is None else None
    if swap is None or not modes.sites:
        return text
    one, other = (ranks[index] for index in swap.ranks)
    mine, theirs = swap.lines
    return (
        f"{rank_list([one])} and {rank_list([other])} of '{name}' make two equal calls in different order: "
        f"{windows[0][swap.at].call}\n"
        f"  {rank_list([one])}: the one at {mine}, then the one at {theirs}\n"
        f"  {rank_list([other])}: the one at {theirs}, then the one at {mine}\n"
        "  before, all ranks were at each of these lines together, so each now gets the result of the other\n"
        "  needed: the same calls, in the same order, on all ranks of the group\n"
        "  fix: call them in one order that does not depend on the rank; or, if the order does not matter, "
        "cc.check(mode, sites=False)"
    )


def _unequal_copies(name: str, ranks: Sequence[int], statements: Sequence[Statement]) -> ReplicaMismatch | None:
    by_place: list[dict[tuple[int, str], list[Copy]]] = []
    for each in statements:
        mine: dict[tuple[int, str], list[Copy]] = {}
        for copy in each.copies:
            mine.setdefault((copy.call, copy.place), []).append(copy)
        by_place.append(mine)
    for number, place in dict.fromkeys((copy.call, copy.place) for each in statements for copy in each.copies):
        passed = [mine.get((number, place), []) for mine in by_place]
        found = next(copies[0] for copies in passed if copies)
        if found.kind in _OF_ADDENDS:  # a warning: see `note_facts`
            continue
        if found.kind == "change":  # a rank without it has kept its numbers
            kept = found._replace(text="no hyperparameter has changed", digest=0)
            passed = [copies + [kept] * (max(map(len, passed)) - len(copies)) for copies in passed]
        elif found.kind != "copy" and _are_parts_of_longest(passed):
            continue
        for nth in range(max(map(len, passed))):
            who = {rank: copies[nth] for rank, copies in zip(ranks, passed, strict=True) if len(copies) > nth}
            if len({copy.digest for copy in who.values()}) > 1:
                return ReplicaMismatch(_copies_text(name, place, who, statements[0].site))
    return None


def _are_parts_of_longest(passed: Sequence[Sequence[Copy]]) -> bool:
    """Whether the ranks' constants at one line agree. A rank may use some of them only, as under ``if rank == 0:``."""
    longest = [copy.digest for copy in max(passed, key=len)]
    for copies in passed:
        rest = iter(longest)
        if not all(copy.digest in rest for copy in copies):
            return False
    return True


_KINDS = {
    "copy": (
        "the copies of",
        "has digest {digest:08x}",
        "make it from the same seed on every rank, or broadcast it from one rank; if the ranks are meant to differ, "
        "declare it with the label V",
    ),
    "labelled": (
        "the copies of",
        "has digest {digest:08x}",
        "make it from the same data on every rank, or broadcast it from one rank; if the ranks are meant to differ, "
        "as rows of their own do, declare it with the label V, or cc.from_local(x, {{{name!r}: Shard(0)}})",
    ),
    "global shape": (
        "the global shapes of",
        "",
        "the same global_shape= on all ranks, or cc.from_local(x, layout) without it, where the ranks agree on extents",
    ),
    "number": (
        "the plain numbers of",
        "",
        "the number of all ranks, cc.all_reduce(n, {name!r}, to=I).item() of a count n; ag.tensor(n), which is "
        "Varying, only for a number of each rank's own value. A factor that clips gradients: optim.clip_grad_norm_, "
        "whose norm counts every parameter once",
    ),
    "constant": (
        "the constants of",
        "has digest {digest:08x}",
        "make it from the same numbers on every rank, like the counts of all ranks, cc.all_reduce(counts, {name!r}); "
        "if the ranks are meant to differ, a plain array, as from numpy.arange in place of autograd.numpy.arange, or "
        "cast(x, {name!r}, to=V): both are Varying",
    ),
    "parameter": (
        "the copies of",
        "has digest {digest:08x}",
        "make it from the same seed on every rank, or broadcast it from one rank, and change it on all ranks in the "
        "same way; if the ranks are meant to differ, declare it with the label V, or Shard(d) for parts of one weight",
    ),
    "objective": (
        "the objectives of",
        "",
        "compute it from values that are equal on all ranks, or sum addends: all_reduce(x, {name!r}, to=I). With a "
        "tape for each microbatch, call backward of the same one on all ranks. A list or dict does not "
        "remember that each rank has picked an element of its own: index the Tensor itself, x[rank]",
    ),
    "gradient": (
        "the gradients of",
        "has digest {digest:08x}",
        "change a gradient on all ranks in the same way; a norm to clip by includes all ranks, as that of "
        "optim.clip_grad_norm_ does",
    ),
    "state": (
        "the optimizers of",
        "has digest {digest:08x}",
        "load the same state on every rank: load_state_dict of a state that one rank has read and broadcast",
    ),
    "hyperparameter": ("the hyperparameters of", "", "the same number on every rank"),
    "change": (
        "the hyperparameters of",
        "",
        "the same number on every rank: change it in the same step on all of them, by a value that they share, like "
        "the sum of their losses",
    ),
    "norm": (
        "the norms of",
        "has digest {digest:08x}",
        "leave norm= out; or return the norm of what all ranks hold together: sum their squares with an all_reduce, "
        "and count copies once",
    ),
    "key": (
        "the random keys of",
        "",
        "the same seed on every rank, and key.along({name!r}) for numbers of each rank",
    ),
    "order": (
        "the orders of",
        "",
        "the same key, batch_size and data set on every rank, of which the loader takes this rank's rows; for "
        "rows that each rank has read itself cc.from_local(rows, {{{name!r}: Shard(0)}})",
    ),
}
"""The kinds of facts: the beginning of the message, what is shown of each, and the fix."""


_OF_ADDENDS = ("scale", "addend")
"""The kinds of facts that may differ."""


def _copies_text(name: str, place: str, who: dict[int, Copy], now: str) -> str:
    groups: dict[tuple[int, str], list[int]] = {}
    for rank, copy in who.items():
        groups.setdefault((copy.digest, copy.text), []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))
    odd = sorted(rank for _, members in ordered[1:] for rank in members)
    head, shown, fix = _KINDS[next(iter(who.values())).kind]
    lines = [
        f"  {rank_list(members)}: {text} {shown.format(digest=digest)}".rstrip() for (digest, text), members in ordered
    ]
    return "\n".join(
        [
            f"{head} {rank_list(odd)} differ from those of {rank_list(ordered[0][1])}, "
            f"and should be equal along '{name}': {place}",
            *lines,
            f"  found at the call at {now}",
            f"  fix: {fix.format(name=name.partition('@')[0])}",
        ]
    )


_COMPARED_ALWAYS = ("norm", "key", "order")
"""The declarations that are always compared in every mode but ``off``. Constants are compared where they are used."""


def declared(how: str, x: Any) -> None:
    """Record a value that the program has declared, for the next calls along the axes of its layout."""
    if modes.watching:
        witness(how, x)
    elif how in _COMPARED_ALWAYS and modes.limit:
        witness(how, x, is_last=True)
    elif how == "tensor" and modes.limit:
        _sample(x)
    if x.layout is not None and x.layout.special and modes.limit:
        _note_global_shape(how, x)


def _note_global_shape(how: str, x: Any) -> None:
    """Record the extents that a leaf states for the parts of a Shard, for the next call along each of its axes."""
    mesh, layout, fact = state.mesh, x.layout, None
    if mesh is None or layout.grid is not mesh.grid:
        return
    for axis in mesh.known_axes:
        checks, labels = axis.group.checks, [layout[name] for name in axis.names]
        if checks is None or not checks.takes_copies:
            continue
        if all(type(label) is Shard and label.extent is not None for label in labels):
            if fact is None:
                whole = [int(n) for n in x.array.shape]
                for label in reversed(layout.labels):
                    if type(label) is Shard and label.extent is not None:
                        whole[label.dim] = label.extent
                place = f"{how} at {short_site(*find_site())}"
                text = f"{how}({describe(x.array, whole, layout)})"
                fact = Copy(place, text, zlib.crc32(text.encode()), "global shape")
            checks.copies.append(fact)
