"""Operations of a user's own: ``from autograd.extend import primitive, defvjp, defjvp``.

A function of any kind, on arrays, numbers and tuples, lists and dictionaries of them, becomes an operation of the tape,
with rules for its derivatives. They are written as those of HIPS autograd are:

    @primitive
    def cube(x): return x**3
    defvjp(cube, lambda ans, x: lambda g: g * 3 * x**2)
    defjvp(cube, lambda g, ans, x: g * 3 * x**2)

One of the two suffices: the other mode then runs the transpose of the rule that is there, which is linear in what it is
given. Rules written in differentiable operations have derivatives of their own, to any order.

Where an operation should take layouts through it, declare it by `autograd.op`: of a function that is known by its rules
only, nothing is known about dimensions, so a sharded operand is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import update_wrapper
from itertools import count
from typing import Any

from .custom.primitive import Call, Extension
from .custom.vspace import VSpace, vspace
from .engine import events
from .engine.broadcasting import broadcast
from .engine.dispatch import identity, ones, unbroadcast
from .engine.events import listeners
from .engine.multi_output import Several
from .engine.primitive import Primitive, op, registry
from .engine.tensor import TENSORS, Tensor
from .errors import NotDifferentiable
from .layouts.layout import Mix, Sum

__all__ = [
    "Box", "Mix", "Primitive", "Several", "Sum", "VSpace", "broadcast", "def_linear", "defjvp", "defjvp_argnum",
    "defjvp_argnums", "deflinear", "defvjp", "defvjp_argnum", "defvjp_argnums", "identity", "notrace_primitive", "ones",
    "op", "primitive", "registry", "unbroadcast", "vspace",
]  # fmt: skip

Function = Callable[..., Any]

primitive_vjps: dict[Any, Function] = {}
"""Primitive -> ``rule(argnums, ans, args, kwargs)``, which returns ``g -> a cotangent for each argnum``."""
primitive_jvps: dict[Any, Function] = {}
"""Primitive -> ``rule(argnums, gs, ans, args, kwargs)``, which returns the tangent."""

Box = Tensor
"""What a traced value is; ``isinstance(x, Box)`` asks for one."""


def primitive(function: Function) -> Function:
    """Make a function an operation of the tape; its derivatives come from `defvjp` and `defjvp`.

    Parameters
    ----------
    function : callable
        Of arrays, numbers and containers of them; it is called with plain ones, and returns such. Other arguments are
        handed on as they are. What is passed by keyword is not differentiated.

    Returns
    -------
    callable
        With the arguments of `function`. Called on plain values it is that function.

    Raises
    ------
    NotDifferentiable
        When it is recorded and has neither rule.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd.extend import defvjp, primitive
    >>> @primitive
    ... def cube(x):
    ...     return x * x * x
    >>> defvjp(cube, lambda ans, x: lambda g: g * 3 * x * x)
    >>> float(ag.grad(cube)(2.0)), float(ag.grad(ag.grad(cube))(2.0))
    (12.0, 12.0)
    """
    name = getattr(function, "__name__", type(function).__name__)

    def call(*args: Any, **kwargs: Any) -> Any:
        made = Call.of(args)
        if made is None:
            return function(*args, **kwargs)
        if listeners:
            events.emit("begin", "forward", name)
            y = operation.apply(made, kwargs)
            events.emit("end", "forward", name, call, args, y, kwargs)
            return y
        return operation.apply(made, kwargs)

    try:
        update_wrapper(call, function)
    except (AttributeError, TypeError):  # a partial, or an instance with __call__
        pass
    call.__name__ = name
    marked: Any = call
    marked.fun, marked.name = function, name
    marked.operation = operation = Extension(
        name, function, lambda: primitive_vjps.get(call), lambda: primitive_jvps.get(call)
    )
    return call


def notrace_primitive(function: Function) -> Function:
    """A function that takes values only: what it is given loses its place on the tape, what it returns has none."""

    def call(*args: Any, **kwargs: Any) -> Any:
        made = Call.of(args)
        return function(*(args if made is None else made.raw()), **kwargs)

    return update_wrapper(call, function)


def _ours(fun: Any, what: str) -> str:
    """The name of a primitive for which a rule is given; an error where that has no meaning."""
    if not hasattr(fun, "operation"):
        raise NotDifferentiable(
            f"{what} for {getattr(fun, '__name__', fun)!r}, which was not made by autograd.extend.primitive. "
            "Needed: a primitive of your own. Fix: mine = primitive(the function on plain arrays)"
        )
    return fun.__name__


def _rules(fun: Any, makers: Sequence[Any], argnums: Iterable[int], what: str) -> dict[int, Any]:
    name = _ours(fun, what)
    for maker in makers:
        if not (maker is None or callable(maker) or (what == "defjvp" and maker == "same")):
            raise NotDifferentiable(f"{what} for {name}: a rule {maker!r} was given; needed: a function, or None")
    return dict(zip(argnums, makers, strict=False))


def _missing(fun: Any, argnum: int, what: str, kind: str) -> NotDifferentiable:
    return NotDifferentiable(
        f"{fun.__name__} was differentiated with respect to argument {argnum}, for which {what} gave no rule. "
        f"Needed: its {kind}, or None where the derivative is zero"
    )


# -- reverse mode ----------------------------------------------------------------------------------------------------
def defvjp(fun: Function, *makers: Function | None, argnums: Iterable[int] | None = None) -> None:
    """Give a primitive its reverse rules.

    Parameters
    ----------
    fun : callable
        Made by `primitive`.
    *makers : callable or None
        One per argument, ``maker(ans, *args, **kwargs) -> (g -> the argument's cotangent)``; None for a zero one.
    argnums : sequence of int, optional
        The arguments that the makers stand for, where these are not the first ones.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd.extend import defvjp, primitive
    >>> scaled = primitive(lambda n, x: n * x)
    >>> defvjp(scaled, lambda ans, n, x: lambda g: g * n, argnums=(1,))
    >>> float(ag.grad(lambda x: scaled(3.0, x))(2.0))
    3.0
    """
    rules = _rules(fun, makers, count() if argnums is None else argnums, "defvjp")

    def maker(wanted: Sequence[int], ans: Any, args: Any, kwargs: Any) -> Function:
        vjps = []
        for argnum in wanted:
            if argnum not in rules:
                raise _missing(fun, argnum, "defvjp", "vjp")
            rule = rules[argnum]
            vjps.append(_zero if rule is None else rule(ans, *args, **kwargs))
        return lambda g: [vjp(g) for vjp in vjps]

    primitive_vjps[fun] = maker


def _zero(g: Any) -> None:
    return None


def defvjp_argnum(fun: Function, maker: Function) -> None:
    """One reverse rule for every argument: ``maker(argnum, ans, args, kwargs) -> (g -> cotangent)``."""
    _ours(fun, "defvjp_argnum")

    def all_of(wanted: Sequence[int], ans: Any, args: Any, kwargs: Any) -> Function:
        vjps = [maker(argnum, ans, args, kwargs) for argnum in wanted]
        return lambda g: [vjp(g) for vjp in vjps]

    primitive_vjps[fun] = all_of


def defvjp_argnums(fun: Function, maker: Function) -> None:
    """One reverse rule for all arguments at once: ``maker(argnums, ans, args, kwargs) -> (g -> cotangents)``."""
    _ours(fun, "defvjp_argnums")
    primitive_vjps[fun] = maker


# -- forward mode ----------------------------------------------------------------------------------------------------
def defjvp(fun: Function, *rules: Function | str | None, argnums: Iterable[int] | None = None) -> None:
    """Give a primitive its forward rules.

    Parameters
    ----------
    fun : callable
        Made by `primitive`.
    *rules : callable, "same" or None
        One per argument, ``rule(g, ans, *args, **kwargs) -> tangent``; "same" where the function is linear in it, None
        for a zero tangent.
    argnums : sequence of int, optional
        The arguments that the rules stand for, where these are not the first ones.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd.extend import defjvp, primitive
    >>> cube = primitive(lambda x: x**3)
    >>> defjvp(cube, lambda g, ans, x: g * 3 * x**2)
    >>> y, dy = ag.jvp(cube, (2.0,), (1.0,))
    >>> float(dy), float(ag.grad(cube)(2.0))
    (12.0, 12.0)
    """
    table = _rules(fun, rules, count() if argnums is None else argnums, "defjvp")

    def all_of(given: Sequence[int], gs: Sequence[Any], ans: Any, args: Any, kwargs: Any) -> Any:
        total = None
        for argnum, g in zip(given, gs, strict=True):
            if argnum not in table:
                raise _missing(fun, argnum, "defjvp", "jvp")
            rule = table[argnum]
            if rule is not None:
                linear = rule == "same"
                dy = fun(*_replaced(args, argnum, g), **kwargs) if linear else rule(g, ans, *args, **kwargs)
                total = dy if total is None else vspace(ans).add(total, dy)
        return total

    primitive_jvps[fun] = all_of


def _replaced(args: Sequence[Any], argnum: int, g: Any) -> list[Any]:
    return [g if i == argnum else a for i, a in enumerate(args)]


def defjvp_argnum(fun: Function, rule: Function) -> None:
    """One forward rule for every argument: ``rule(argnum, g, ans, args, kwargs) -> tangent``; they are summed."""
    _ours(fun, "defjvp_argnum")

    def all_of(given: Sequence[int], gs: Sequence[Any], ans: Any, args: Any, kwargs: Any) -> Any:
        total = None
        for argnum, g in zip(given, gs, strict=True):
            dy = rule(argnum, g, ans, args, kwargs)
            total = dy if total is None else vspace(ans).add(total, dy)
        return total

    primitive_jvps[fun] = all_of


def defjvp_argnums(fun: Function, rule: Function) -> None:
    """One forward rule for all arguments at once: ``rule(argnums, gs, ans, args, kwargs) -> tangent``."""
    _ours(fun, "defjvp_argnums")
    primitive_jvps[fun] = rule


def def_linear(fun: Function) -> None:
    """Say that a primitive is linear in each of its arguments: its forward rule is the function itself."""
    defjvp_argnum(fun, lambda argnum, g, ans, args, kwargs: fun(*_replaced(args, argnum, g), **kwargs))


deflinear = def_linear


def register_notrace(kind: Any, fun: Function) -> None:
    """Say that a primitive has no derivative: what it returns is constant, in both modes."""
    _ours(fun, "register_notrace")
    primitive_vjps[fun] = lambda wanted, ans, args, kwargs: lambda g: [None] * len(wanted)
    primitive_jvps[fun] = lambda given, gs, ans, args, kwargs: None


def getval(x: Any) -> Any:
    """The plain value of a traced one."""
    if x.__class__ in TENSORS:
        made = Call.of((x,))
        assert made is not None
        return made.raw()[0]
    return x


def isbox(x: Any) -> bool:
    """Whether a value is traced."""
    return x.__class__ in TENSORS
