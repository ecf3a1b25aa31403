"""The module `autograd.core` of HIPS autograd: transforms at a point, and functions to define derivative rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import extend
from .custom.boxes import VJPNode, backward_pass, isbox
from .custom.vspace import VSpace, vspace
from .errors import warn
from .extend import (
    Box,
    def_linear,
    defjvp,
    defjvp_argnum,
    defjvp_argnums,
    defvjp,
    defvjp_argnum,
    defvjp_argnums,
    getval,
    primitive_jvps,
    primitive_vjps,
)
from .transforms import make_jvp as _make_jvp
from .transforms import make_vjp as _make_vjp

__all__ = [
    "Box", "VJPNode", "VSpace", "backward_pass", "def_linear", "defjvp", "defjvp_argnum", "defjvp_argnums", "defvjp",
    "defvjp_argnum", "defvjp_argnums", "getval", "isbox", "make_jvp", "make_vjp", "primitive", "primitive_jvps",
    "primitive_vjps", "vspace",
]  # fmt: skip

Function = Callable[..., Any]


def make_vjp(fun: Function, x: Any) -> tuple[Function, Any]:
    """Return ``(pullback, fun(x))``; see `autograd.make_vjp`."""
    found: tuple[Function, Any] = _make_vjp(fun)(x)
    return found


def make_jvp(fun: Function, x: Any) -> Function:
    """Return the function ``v -> (fun(x), derivative of fun along v)``; see `autograd.make_jvp`."""
    found: Function = _make_jvp(fun)(x)
    return found


def primitive(function: Function) -> Function:
    """`autograd.extend.primitive` with HIPS autograd's deprecated methods `defvjp`, `defvjp_is_zero`, `defgrad`."""
    call: Any = extend.primitive(function)
    rules: dict[int, Any] = {}

    def define(argnum: int, maker: Function | None, name: str) -> None:
        warn(f"{call.__name__}.{name} is deprecated; use autograd.extend.defvjp", DeprecationWarning)
        rules[argnum] = maker
        extend.defvjp(call, *(rules[i] for i in sorted(rules)), argnums=sorted(rules))

    def old_defvjp(maker: Function, argnum: int = 0) -> None:
        def maker_of_pullback(ans: Any, *args: Any, **kwargs: Any) -> Function:
            return lambda g: maker(g, ans, vspace(args[argnum]), vspace(g), *args, **kwargs)

        define(argnum, maker_of_pullback, "defvjp")

    def defvjp_is_zero(argnums: Any = (0,)) -> None:
        for argnum in argnums:
            define(argnum, None, "defvjp_is_zero")

    call.defvjp = old_defvjp
    call.defvjp_is_zero = defvjp_is_zero
    call.defgrad = lambda maker, argnum=0: define(argnum, maker, "defgrad")
    found: Function = call
    return found
