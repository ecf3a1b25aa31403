"""Groups of an optimizer's parameters that have hyperparameters of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, NoReturn

from ..engine.leaves import Leaf
from ..errors import ArgumentError, ShapeError

__all__ = [
    "ByParameter", "Group", "Members", "Names", "Numbers", "assign", "check_names", "follow", "matching", "names_of",
    "split",
]  # fmt: skip


class Members:
    """The record of a group in an optimizer: the indices of its parameters, and its own hyperparameters."""

    def __init__(self, indices: range, own: dict[str, Any]):
        self.indices, self.own = indices, own
        lr = own.get("lr")
        self.schedule: Callable[[int], float] | None = lr if callable(lr) else None
        if self.schedule is not None:
            own["lr"] = self.schedule(0)
        self.scheduled = own.get("lr")  # the rate that the schedule has set


class Numbers:
    """The hyperparameters of an optimizer and of its groups, by which an assignment is noticed.

    Numbers become new objects of the same value, so that the assignment of an equal number is noticed, too.
    """

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer
        self._names = sorted(optimizer.legal_names())
        for owner, held in self._owners():
            for name in [name for name in self._names if name in held]:
                value = held[name]
                if value.__class__ is float:
                    held[name] = new = float.fromhex(value.hex())
                    if owner.scheduled is value:  # else it would be taken for assigned since
                        owner.scheduled = new
        self._known = self._now()

    def _owners(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        optimizer = self.optimizer
        yield optimizer, vars(optimizer)
        yield from ((members, members.own) for members in optimizer._groups)

    def _now(self) -> dict[tuple[int, str], Any]:
        owners = enumerate(self._owners())
        return {(k, name): held[name] for k, (_, held) in owners for name in self._names if name in held}

    def assigned(self) -> list[tuple[int, str, Any]]:
        """The place, the name and the value of what was assigned since the last call or `note`."""
        before, self._known = self._known, self._now()
        return [(k, name, value) for (k, name), value in self._known.items()
                if before.get((k, name), self) is not value]  # fmt: skip

    def note(self) -> None:
        """The optimizer itself may have changed them."""
        self._known = self._now()


def assign(optimizer: Any, place: int, name: str, value: Any) -> None:
    """Assign a hyperparameter of an optimizer, or of the group at a place from 1 on."""
    if place == 0:
        setattr(optimizer, name, value)
    else:
        optimizer._groups[place - 1].own[name] = value


def follow(owner: Any, lr: Any, steps: int) -> Any:
    """Return the rate of the step after `steps` steps, of an optimizer or a group with a schedule and the rate `lr`.

    If `lr` is not what the schedule has set, it was assigned since, and the schedule has ended.
    """
    if lr is not owner.scheduled:
        owner.schedule = None
        return lr
    owner.scheduled = owner.schedule(steps)
    return owner.scheduled


class Group(MutableMapping[str, Any]):
    """Some parameters of an optimizer and their hyperparameters: those of the group, else those of the optimizer.

    It is used as a dictionary, with the key "params" and the names of the hyperparameters. An item that is set applies
    to this group only; of an optimizer with one group it is the optimizer's attribute. If the group's rate follows a
    schedule, a rate that is set takes its place: the schedule has ended.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import optim
    >>> w, b = ag.Parameter([1.0], name="w"), ag.Parameter([1.0], name="b")
    >>> opt = optim.SGD([{"params": [w]}, {"params": [b], "lr": 0.01}], lr=0.1)
    >>> opt.lr = 0.5
    >>> [group["lr"] for group in opt.param_groups]
    [0.5, 0.01]
    """

    def __init__(self, optimizer: Any, members: Members):
        self.optimizer, self.indices, self.own = optimizer, members.indices, members.own

    def __getitem__(self, name: str) -> Any:
        if name == "params":
            return [self.optimizer.parameters[i] for i in self.indices]
        if name in self.own:
            return self.own[name]
        if name not in self.optimizer.legal_names():
            raise KeyError(name)
        return getattr(self.optimizer, name)

    def __setitem__(self, name: str, value: Any) -> None:
        check_names(self.optimizer, [name])
        if len(self.optimizer.param_groups) == 1 and name not in self.own:
            setattr(self.optimizer, name, value)
        else:
            self.own[name] = value

    def __delitem__(self, name: str) -> None:
        del self.own[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("params", *self.optimizer.number_names()))

    def __len__(self) -> int:
        return 1 + len(self.optimizer.number_names())

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={self[name]!r}" for name in self.optimizer.number_names())
        return f"Group({len(self.indices)} parameters, {numbers})"


def check_names(optimizer: Any, names: Iterable[str]) -> None:
    """Raise ArgumentError for a key of a group that is no hyperparameter of the optimizer."""
    for name in names:
        if name not in optimizer.legal_names():
            raise ArgumentError(
                f"{type(optimizer).__name__}: a group of parameters with {name!r} was given; needed: 'params', and "
                f"some of {', '.join(optimizer.legal_names())}"
            )


def split(caller: str, params: Any) -> list[tuple[list[Leaf], dict[str, Any]]]:
    """The parameters and hyperparameters of each group, of an iterable of parameters or of dictionaries."""
    try:
        given = list(params)
    except TypeError as error:
        text = f"{caller}: {type(params).__name__} was given; needed: a list of Parameters"
        raise ArgumentError(text) from error
    if not any(isinstance(each, dict) for each in given):
        return [(given, {})]
    found = []
    for each in given:
        if not isinstance(each, dict) or "params" not in each:
            raise ArgumentError(
                f"{caller}: {type(each).__name__} was given in a list of groups; needed: dictionaries with the key "
                "'params'"
            )
        members = each["params"]
        own = {name: value for name, value in each.items() if name != "params"}
        found.append(([members] if isinstance(members, Leaf) else list(members), own))
    return found


# -- names -------------------------------------------------------------------------------------------------------------
class Names(list[list[str]]):
    """The names of the parameters in an optimizer's ``state_dict``, a list for each group; "" where there is none."""

    @property
    def keys(self) -> list[str]:
        """The names of all groups, each once; see `ByParameter`."""
        found = _keys(name for names in self for name in names)
        return [f"{name}#{k}" if k else name for name, k in found]

    def __reduce__(self) -> Any:
        return list, ([*self],)  # a copy, or a file of pickle, has a plain list


class ByParameter(list[Any]):
    """A list in a ``state_dict`` with a value for each parameter of an optimizer, in the order of its `Names`.

    Attributes
    ----------
    keys : list of str
        The names, each once: a name that occurs again has its number, as in ``"weight#1"``.
    layouts : list of Layout or None
        Those of the parameters, which their values have.
    """

    def __init__(self, values: Iterable[Any], names: Names, parameters: Iterable[Leaf]):
        super().__init__(values)
        self.keys = names.keys
        self.layouts = [p.layout for p in parameters]

    def __reduce__(self) -> Any:
        return list, ([*self],)


def names_of(optimizer: Any) -> Names:
    """The names of an optimizer's parameters."""
    return Names([p.name for p in group["params"]] for group in optimizer.param_groups)


def _keys(names: Iterable[Any]) -> dict[Any, int]:
    """By name, the place in the list; names that occur again are told apart by how often they have occurred."""
    found: dict[Any, int] = {}
    occurrences: Counter[Any] = Counter()
    for i, name in enumerate(names):
        found[name, occurrences[name]] = i
        occurrences[name] += 1
    return found


def matching(optimizer: Any, saved: Any) -> tuple[list[int], list[int]]:
    """For each group, and each parameter, of an optimizer its place in a state with the names `saved`.

    Without names, in the state or here, the places are the same.

    Raises
    ------
    ShapeError
        The names, or those of a group, differ.
    """
    mine = names_of(optimizer)
    sizes = [len(names) for names in mine]
    usual = [*range(len(mine))], [*range(sum(sizes))]
    if saved is None or saved == mine:
        return usual
    if not all(isinstance(names, list | tuple) and all(isinstance(x, str) for x in names) for names in saved):
        raise ShapeError("load_state_dict: names: needed: a list of names for each group")
    is_named = [any(any(names) for names in each) for each in (mine, saved)]
    if not all(is_named) and [len(names) for names in saved] == sizes:
        return usual
    starts = [sum(len(names) for names in saved[:k]) for k in range(len(saved))]
    left = {k: _keys(names) for k, names in enumerate(saved)}
    groups, places = [], []
    for k, names in enumerate(mine):
        needed = _keys(names)
        at = next((j for j in (k, *left) if j in left and left[j].keys() == needed.keys()), None)
        if at is None:
            _refuse_names(optimizer, mine, saved, k)
        found = left.pop(at)
        groups.append(at)
        places += [starts[at] + found[key] for key in needed]
    return groups, places


def _refuse_names(optimizer: Any, mine: Any, saved: Any, k: int) -> NoReturn:
    have, given = [name for names in mine for name in names], [name for names in saved for name in names]
    missing = [name for name in have if name not in given]
    unknown = [name for name in given if name not in have]
    fault = f"without {missing}, with {unknown} that it does not have" if missing or unknown else (
        f"which are the same, in other groups: group {k} has {mine[k]}")  # fmt: skip
    raise ShapeError(
        f"{type(optimizer).__name__}.load_state_dict: the state has the parameters of another optimizer: "
        f"{len(given)} of them for {len(have)}, {fault}\n"
        "  fix: the parameters of the run that saved it, with the same groups; their order does not matter\n"
        "  or:  if they are the same under other names, give them these: p.name = ..."
    )
