"""Operations defined by users: ``from autograd.extend import primitive, defvjp, defjvp``.

`primitive` makes any function of arrays, numbers, and nested containers of them an operation of the tape. Its
derivative rules are written as in HIPS autograd:

    @primitive
    def cube(x): return x**3
    defvjp(cube, lambda ans, x: lambda g: g * 3 * x**2)
    defjvp(cube, lambda g, ans, x: g * 3 * x**2)

One of the two rules is enough: each is linear in g, so the other mode runs its transpose. Rules written in
differentiable operations give derivatives of every order.

Nothing is known about the dimensions of such a function, so a sharded operand is refused. Declare an operation that
should accept sharded operands with `op`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import update_wrapper
from itertools import count
from typing import Any

from .custom.boxes import Box
from .custom.primitive import Call, Extension, called
from .custom.vspace import VSpace, vspace
from .engine import events
from .engine.dispatch import identity, ones, unbroadcast
from .engine.events import listeners
from .engine.multi_output import Several
from .engine.primitive import Primitive, op, registry
from .engine.tensor import TENSORS
from .errors import GradientWarning, NotDifferentiable, check_callable, typed_errors, warn
from .layouts.inference import broadcast
from .layouts.layout import Mix, Sum
from .ops.numpy_protocol import table
from .transforms import vjp

__all__ = [
    "Box", "Mix", "Primitive", "Several", "Sum", "VSpace", "broadcast", "def_linear", "defjvp", "defjvp_argnum",
    "defjvp_argnums", "deflinear", "defvjp", "defvjp_argnum", "defvjp_argnums", "identity", "notrace_primitive", "ones",
    "op", "primitive", "registry", "unbroadcast", "vspace",
]  # fmt: skip

Function = Callable[..., Any]

primitive_vjps: dict[Any, Function] = {}
"""Reverse rules by primitive: ``rule(argnums, ans, args, kwargs)`` returns ``g -> one cotangent per argnum``."""
primitive_jvps: dict[Any, Function] = {}
"""Forward rules by primitive: ``rule(argnums, gs, ans, args, kwargs)`` returns the tangent."""


def primitive(function: Function) -> Function:
    """Make a function an operation of the tape, with derivatives given by `defvjp` or `defjvp`.

    Parameters
    ----------
    function : callable
        A function of arrays, numbers and containers of them. It is called with plain values and returns plain values.
        Other arguments are passed on as they are. Keyword arguments are not differentiated.

    Returns
    -------
    callable
        A function with the same arguments. On plain values it calls `function`.

    Raises
    ------
    NotDifferentiable
        In a call that is recorded, if the primitive has no rule.

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
    return _primitive(function)


def replaceable(function: Function) -> Callable[[Function], Function]:
    """Decorate a function of this package whose derivative users may replace by `defvjp` or `defjvp`.

    Parameters
    ----------
    function : callable
        The function of plain values, such as SciPy's of the same name.

    Returns
    -------
    callable
        The decorator. The decorated function runs until it is given a rule; then `function` runs as a primitive with
        this rule. In HIPS autograd all functions are primitives.
    """
    return lambda ours: _primitive(function, ours)


def _primitive(function: Function, without_rules: Function | None = None) -> Function:
    check_callable(function, "primitive")
    name = getattr(function, "__name__", type(function).__name__)

    def call(*args: Any, **kwargs: Any) -> Any:
        if without_rules is not None and call not in primitive_vjps and call not in primitive_jvps:
            return without_rules(*args, **kwargs)
        arguments = Call.of(args)
        if arguments is None:
            return called(function, *args, **kwargs)
        if listeners:
            with events.emitting("forward", name, call, args, kwargs):
                y = operation.apply(arguments, kwargs)
            events.emit("end", "forward", name, call, args, y, kwargs)
            return y
        return operation.apply(arguments, kwargs)

    with suppress(AttributeError, TypeError):  # a partial, or an instance with __call__
        update_wrapper(call, function if without_rules is None else without_rules)
    call.__name__ = name
    marked: Any = call
    marked.fun, marked.name = function, name
    marked.operation = operation = Extension(
        name, function, lambda: primitive_vjps.get(call), lambda: primitive_jvps.get(call)
    )
    return call


def notrace_primitive(function: Function) -> Function:
    """Wrap a function to run on plain values: traced arguments are replaced by their values, nothing is recorded."""
    check_callable(function, "notrace_primitive")

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = Call.of(args)
        return called(function, *(args if arguments is None else arguments.raw()), **kwargs)

    return update_wrapper(call, function)


_given_rules: dict[Any, Function] = {}
"""The primitives in the places of functions of `autograd.numpy` and `autograd.scipy` that users gave rules."""


def _with_rules(fun: Any) -> Function | None:
    """The primitive that takes the place of a function of `autograd.numpy` or `autograd.scipy`; None for others.

    In HIPS autograd all these functions are primitives, whose rules are replaced. Here a primitive is put in each of
    the modules that have the function, and in the place of NumPy's own on Tensors. Other operations that use the
    function, and names that were imported before, keep the derivative that they have.
    """
    if fun in _given_rules:
        return _given_rules[fun]
    package = __package__
    modules = [m for name, m in [*sys.modules.items()] if name.startswith((f"{package}.numpy", f"{package}.scipy"))]
    places = [(module, name) for module in modules for name, found in [*vars(module).items()] if found is fun]
    for module, name in places:
        theirs = getattr(sys.modules.get(module.__name__.removeprefix(f"{package}.")), name, None)
        if callable(theirs) and theirs is not fun:
            made = _given_rules[fun] = _primitive(theirs, fun)
            break
    else:
        return None
    for module, name in places:
        setattr(module, name, made)
    functions = table()
    for theirs in [theirs for theirs, ours in functions.items() if ours is fun]:
        functions[theirs] = made
    return made


def _own_rule(fun: Function) -> Function:
    """The reverse rule of a function of this package, in the form of `primitive_vjps`."""

    def rule(wanted: Sequence[int], ans: Any, args: Any, kwargs: Any) -> Function:
        def of_wanted(*xs: Any) -> Any:
            given = dict(zip(wanted, xs, strict=True))
            return fun(*(given.get(i, x) for i, x in enumerate(args)), **kwargs)

        pullback = vjp(of_wanted, *(args[i] for i in wanted))[1]
        return lambda g: [pullback(g)] if len(wanted) == 1 else list(pullback(g))

    return rule


def _require_primitive(fun: Any, what: str) -> Any:
    """Return the primitive `fun`, or that in the place of a function of this package; else raise NotDifferentiable.

    HIPS autograd keeps the rules of a function that was never made a primitive, and never uses them. So does this, with
    a warning.
    """
    if not hasattr(fun, "operation"):
        made = _with_rules(fun) if callable(fun) else None
        if made is not None:
            return made
        if callable(fun) and not getattr(fun, "__module__", "autograd").startswith("autograd"):
            name = getattr(fun, "__name__", repr(fun))
            warn(
                f"{what} for {name}, which is no primitive: its rules are never used, and its operations are "
                f"differentiated one by one. Fix: @primitive above def {name}",
                GradientWarning,
            )
            return fun
        raise NotDifferentiable(
            f"{what} for {getattr(fun, '__name__', fun)!r}, which was not made by autograd.extend.primitive; "
            "needed: a primitive of your own. Fix: mine = primitive(the function on plain arrays)"
        )
    return fun


def _rules(fun: Any, makers: Sequence[Any], argnums: Iterable[int], what: str) -> dict[int, Any]:
    name = getattr(fun, "__name__", repr(fun))
    for maker in makers:
        if not (maker is None or callable(maker) or (what == "defjvp" and maker == "same")):
            raise NotDifferentiable(f"{what} for {name}: a rule {maker!r} was given; needed: a function, or None")
    return dict(zip(argnums, makers, strict=False))


def _missing(fun: Any, argnum: int, what: str, kind: str) -> NotDifferentiable:
    return NotDifferentiable(
        f"{fun.__name__} was differentiated with respect to argument {argnum}, for which {what} gave no rule; "
        f"needed: its {kind}, or None where the derivative is zero"
    )


# -- reverse mode ----------------------------------------------------------------------------------------------------
@typed_errors
def defvjp(fun: Function, *makers: Function | None, argnums: Iterable[int] | None = None) -> None:
    """Define the reverse rules of a primitive.

    Parameters
    ----------
    fun : callable
        Made by `primitive`; or a function of `autograd.numpy` or `autograd.scipy`, whose derivative the rules replace
        there.
    *makers : callable or None
        One per argument: ``maker(ans, *args, **kwargs)`` returns the function from the cotangent g of the result to
        the cotangent of the argument. None means that the cotangent is zero.
    argnums : sequence of int, optional
        The arguments to which the makers belong; by default the first ones.

    Raises
    ------
    NotDifferentiable
        `fun` is another operation of this package, or a maker is not a function.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd.extend import defvjp, primitive
    >>> scaled = primitive(lambda n, x: n * x)
    >>> defvjp(scaled, lambda ans, n, x: lambda g: g * n, argnums=(1,))
    >>> float(ag.grad(lambda x: scaled(3.0, x))(2.0))
    3.0
    """
    fun = _require_primitive(fun, "defvjp")
    rules = _rules(fun, makers, count() if argnums is None else argnums, "defvjp")

    def maker(argnum: int, ans: Any, args: Any, kwargs: Any) -> Function:
        if argnum not in rules:
            raise _missing(fun, argnum, "defvjp", "vjp")
        rule = rules[argnum]
        return (lambda g: None) if rule is None else rule(ans, *args, **kwargs)

    _define_vjp(fun, maker)


def defvjp_argnum(fun: Function, maker: Function) -> None:
    """Define one reverse rule for every argument: ``maker(argnum, ans, args, kwargs) -> (g -> cotangent)``."""
    _define_vjp(_require_primitive(fun, "defvjp_argnum"), maker)


def _define_vjp(fun: Function, maker: Function) -> None:
    def combined(wanted: Sequence[int], ans: Any, args: Any, kwargs: Any) -> Function:
        vjps = [maker(argnum, ans, args, kwargs) for argnum in wanted]
        return lambda g: [vjp(g) for vjp in vjps]

    primitive_vjps[fun] = combined


def defvjp_argnums(fun: Function, maker: Function) -> None:
    """Define one reverse rule for all arguments: ``maker(argnums, ans, args, kwargs) -> (g -> cotangents)``."""
    primitive_vjps[_require_primitive(fun, "defvjp_argnums")] = maker


# -- forward mode ----------------------------------------------------------------------------------------------------
@typed_errors
def defjvp(fun: Function, *rules: Function | str | None, argnums: Iterable[int] | None = None) -> None:
    """Define the forward rules of a primitive.

    Parameters
    ----------
    fun : callable
        Made by `primitive`; or a function of `autograd.numpy` or `autograd.scipy`, which keeps its derivative in
        reverse mode.
    *rules : callable, "same" or None
        One per argument: ``rule(g, ans, *args, **kwargs)`` returns the tangent of the result for the tangent g of the
        argument. "same" means that `fun` is linear in the argument, None that the tangent is zero.
    argnums : sequence of int, optional
        The arguments to which the rules belong; by default the first ones.

    Raises
    ------
    NotDifferentiable
        `fun` was not made by `primitive`, or a rule is neither a function nor "same".

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
    fun = _require_primitive(fun, "defjvp")
    known = _rules(fun, rules, count() if argnums is None else argnums, "defjvp")

    def rule(argnum: int, g: Any, ans: Any, args: Any, kwargs: Any) -> Any:
        if argnum not in known:
            raise _missing(fun, argnum, "defjvp", "jvp")
        given = known[argnum]
        if given is None:
            return None
        return fun(*_replaced(args, argnum, g), **kwargs) if given == "same" else given(g, ans, *args, **kwargs)

    _define_jvp(fun, rule)


def _replaced(args: Sequence[Any], argnum: int, g: Any) -> list[Any]:
    return [g if i == argnum else a for i, a in enumerate(args)]


def defjvp_argnum(fun: Function, rule: Function) -> None:
    """Define one forward rule for every argument: ``rule(argnum, g, ans, args, kwargs) -> tangent``, to be summed."""
    _define_jvp(_require_primitive(fun, "defjvp_argnum"), rule)


def _define_jvp(fun: Function, rule: Function) -> None:
    def combined(given: Sequence[int], gs: Sequence[Any], ans: Any, args: Any, kwargs: Any) -> Any:
        total = None
        for argnum, g in zip(given, gs, strict=True):
            dy = rule(argnum, g, ans, args, kwargs)
            if dy is not None:
                total = dy if total is None else vspace(ans).add(total, dy)
        return total

    _set_jvp(fun, combined)


def defjvp_argnums(fun: Function, rule: Function) -> None:
    """Define one forward rule for all arguments: ``rule(argnums, gs, ans, args, kwargs) -> tangent``."""
    _set_jvp(_require_primitive(fun, "defjvp_argnums"), rule)


def _set_jvp(fun: Any, rule: Function) -> None:
    """Set the forward rule of a primitive. A function of this package keeps its reverse rule, unless a user set one."""
    primitive_jvps[fun] = rule
    for ours, made in _given_rules.items():
        if made is fun:
            primitive_vjps.setdefault(fun, _own_rule(ours))


def def_linear(fun: Function) -> None:
    """Declare a primitive as linear in each of its arguments, so that its forward rule is the function itself."""
    defjvp_argnum(fun, lambda argnum, g, ans, args, kwargs: fun(*_replaced(args, argnum, g), **kwargs))


deflinear = def_linear


def register_notrace(kind: Any, fun: Function) -> None:
    """Declare a primitive without derivative: its result counts as constant in both modes. `kind` is ignored."""
    fun = _require_primitive(fun, "register_notrace")
    primitive_vjps[fun] = lambda wanted, ans, args, kwargs: lambda g: [None] * len(wanted)
    primitive_jvps[fun] = lambda given, gs, ans, args, kwargs: None


def getval(x: Any) -> Any:
    """Return the plain value of a traced value, and anything else as it is."""
    if x.__class__ in TENSORS:
        arguments = Call.of((x,))
        assert arguments is not None
        return arguments.raw()[0]
    return x
