"""The declaration of an operation as text: what it computes, and its adjoint. ``help(autograd.numpy.sin)`` shows it.

The text is made from the source of the declaration when it is asked for.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import operator
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from .arrays.products import product
from .layouts.inference import broadcast
from .parsing import parse

__all__ = ["docstring", "expression", "source"]

_OPERATORS = {operator.add: "a + b", operator.sub: "a - b", operator.mul: "a * b", operator.truediv: "a / b",
              product: "a @ b", operator.neg: "-a", operator.eq: "a == b", operator.ne: "a != b",
              operator.lt: "a < b", operator.le: "a <= b", operator.gt: "a > b", operator.ge: "a >= b"}  # fmt: skip
_DEPTH = 4  # of helper functions that are put in place of their calls


def docstring(op: Any) -> str:
    """Return the documentation of an operation: a line of NumPy's, the formula, the adjoints and the layouts.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> print(np.exp.__doc__)
    exp(x)
    <BLANKLINE>
    Calculate the exponential of all elements in the input array.
    <BLANKLINE>
    Formula: ``y = exp(x)``
    <BLANKLINE>
    Adjoint: ``ct * y``
    <BLANKLINE>
    ``ct`` is the cotangent of ``y``.
    <BLANKLINE>
    Layouts: the result has the label of the operand. P is refused, because the operation is not linear. Operands are
    broadcast, and their cotangents summed accordingly.
    """
    result, operands, options = _names(op)
    dots = ", ..." if op.variadic else ""
    call = f"{op.name}({', '.join(operands)}{dots})"
    parts = [call]
    theirs = getattr(np, op.name, None)
    if op.declared.module.startswith("autograd.") and callable(theirs):
        paragraphs = (inspect.getdoc(theirs) or "").split("\n\n")  # of a function in C the first is its signature
        parts += [text for text in paragraphs[:2] if not re.match(r"[\w.]+\(", text)][:1]
    parts.append(f"Formula: ``{result} = {_formula(op, operands, options) or call}``")
    rules = [(name, rule) for name, rule in zip(operands, op.adjoint, strict=False) if rule is not None]
    if not rules:
        parts.append("It has no derivative: its operands get no cotangent.")
    else:
        heads = ["Adjoint" if len(op.words) == 1 else f"Adjoint of ``{name}``" for name, _ in rules]
        parts += [_adjoint(head, rule, result, operands, options) for head, (_, rule) in zip(heads, rules, strict=True)]
        parts.append(f"``ct`` is the cotangent of ``{result}``.")
    parts.append("\n".join(textwrap.wrap("Layouts: " + _layouts(op), 116)))
    return "\n\n".join(parts)


def _names(op: Any) -> tuple[str, list[str], list[str]]:
    """The names of the result, the operands and the options in the rules."""
    n = len(op.words)
    for rule in op.adjoint:
        code = getattr(rule, "__code__", None)
        if code is not None and not op.variadic and code.co_argcount >= n + 2:
            names = list(code.co_varnames[: code.co_argcount])
            return names[1], names[2 : 2 + n], names[2 + n :]
    known = [op.operand_name(i) for i in range(n)] if op.operands[:n] != ["x", "y"][:n] else ["a", "b"][:n]
    return "y", ["x"] if n == 1 and not op.variadic else known, []


def _formula(op: Any, operands: list[str], options: list[str]) -> str:
    """The right side of the formula, "" where the function is written in statements."""
    function = getattr(op, "composition", op.function)
    if function in _OPERATORS:
        names = {a: ast.Name(b) for a, b in zip("ab", operands, strict=False)}
        return ast.unparse(_Inlined(None, names, 0).visit(parse(_OPERATORS[function], "eval").body))
    if isinstance(function, np.ufunc) or getattr(function, "__code__", None) is None:
        return f"{getattr(function, '__name__', op.name)}({', '.join(operands)})"
    return expression(function, [*operands, *options])


def _adjoint(head: str, rule: Callable[..., Any], result: str, operands: list[str], options: list[str]) -> str:
    found = expression(rule, ["ct", result, *operands, *options])
    if found:
        return f"{head}: ``{found}``"
    described = (inspect.getdoc(rule) or "").split("\n\n")[0].rstrip(".")
    if not described and source(rule) == "lambda":
        return f"{head}: a lambda whose source is not available"
    return f"{head}: {described}" if described else f"{head}::\n\n" + textwrap.indent(source(rule), "    ")


def _layouts(op: Any) -> str:
    letters = "".join(op.words)
    followed = [x for x in letters if x != "S"]
    if not followed:
        text = "the result has the label of the operands. P is refused."
    elif "N" in letters:
        text = "the result has the label of the operand. P is refused, because the operation is not linear."
        if len(letters) > 1:
            text = ("the operands have one label, or are constant, and the result has it too. P is refused where the "
                    "operation is not linear.")  # fmt: skip
    elif len(set(followed)) < len(followed):
        text = "the operands have one label, which the result has too: the operation is linear, so P stays P."
    elif len(followed) > 1:
        text = ("the operation is linear in each operand: P beside R or a constant gives P. Otherwise the operands "
                "have one label, which the result has too.")  # fmt: skip
    else:
        text = "the result has the label of the operand: the operation is linear, so P stays P."
    if op.dims is not broadcast:
        return text + f" For sharded dimensions see ``python -m autograd registry {op.name}``."
    return text + " Operands are broadcast, and their cotangents summed accordingly."


# -- functions as expressions ----------------------------------------------------------------------------------------


def expression(function: Callable[..., Any], names: list[str], depth: int = _DEPTH) -> str:
    """Return what a function of one expression returns, in terms of the given names; "" if it has statements.

    Calls of lambdas, and of private functions of one expression, are replaced by what they return.

    Examples
    --------
    >>> from autograd.formula import expression
    >>> from autograd.engine.primitive import registry
    >>> expression(registry["arctan2"].adjoint[0], ["ct", "out", "y", "x"])
    'ct * (x / nonzero(x * x + y * y))'
    """
    found = _returned(function)
    if found is None:
        return ""
    node, parameters = found
    if parameters and parameters[-1].startswith("*"):
        parameters = parameters[:-1]
    if len(parameters) > len(names):
        return ""
    renamed = dict(zip(parameters, (parse(name, "eval").body for name in names), strict=False))
    return ast.unparse(_Inlined(function, renamed, depth).visit(node))


def _returned(function: Any) -> tuple[ast.expr, list[str]] | None:
    """The expression that a function returns, and its parameters; None if it has other statements."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    try:
        text = _lambda_source(code) if code.co_name == "<lambda>" else textwrap.dedent(inspect.getsource(function))
        tree: Any = parse(text, "exec").body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    made = tree.value if isinstance(tree, ast.Expr) else tree
    if isinstance(made, ast.Lambda):
        body: Any = made.body
    elif isinstance(made, ast.FunctionDef):
        statements = made.body[1:] if ast.get_docstring(made) is not None else made.body
        if len(statements) != 1 or not isinstance(statements[0], ast.Return) or statements[0].value is None:
            return None
        body = statements[0].value
    else:
        return None
    star = made.args.vararg
    return body, [a.arg for a in made.args.args] + ([f"*{star.arg}"] if star is not None else [])


class _Inlined(ast.NodeTransformer):
    """Replaces the parameters of a function, its constants, and its calls of helpers."""

    def __init__(self, function: Any, names: Mapping[str, ast.expr], depth: int):
        self.names, self.depth = names, depth
        self.known: dict[str, Any] = {}
        if function is not None:
            cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
            self.known = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id in self.names:
            return self.names[node.id]
        value = self.known.get(node.id)
        return ast.Constant(float(f"{value:.6g}")) if isinstance(value, float) else node

    def visit_Call(self, node: ast.Call) -> Any:
        helper = self.known.get(node.func.id) if isinstance(node.func, ast.Name) else None
        name = getattr(helper, "__name__", "")
        if self.depth and not node.keywords and (name == "<lambda>" or name.startswith("_")):
            found = _returned(helper)
            if found is not None and len(found[1]) == len(node.args):
                given = dict(zip(found[1], map(self.visit, node.args), strict=True))
                return _Inlined(helper, given, self.depth - 1).visit(found[0])
        return self.generic_visit(node)


# -- functions as they are written -----------------------------------------------------------------------------------


def source(rule: Callable[..., Any] | None) -> str:
    """Return the source of a rule: a function or lambda as it is written, and the lambdas that it closes over.

    Examples
    --------
    >>> from autograd.formula import source
    >>> from autograd.engine.primitive import registry
    >>> source(registry["exp"].adjoint[0])
    'lambda ct, y, x: ct * derivative(y, x), where derivative = lambda y, x: y'
    >>> source(None)
    'no cotangent'
    """
    if rule is None:
        return "no cotangent"
    code = getattr(rule, "__code__", None)
    if code is None:
        return str(getattr(rule, "name", None) or getattr(rule, "__name__", repr(rule)))
    if code.co_name != "<lambda>":
        try:
            return textwrap.dedent(inspect.getsource(rule)).rstrip()
        except (OSError, TypeError):
            return str(code.co_name)
    text = _lambda_source(code)
    closed = zip(code.co_freevars, (c.cell_contents for c in rule.__closure__ or ()), strict=True)
    # named functions are left out: they can be looked up, and would not fit into a table
    inner = [f"{name} = {source(x)}" for name, x in closed if getattr(x, "__name__", "") == "<lambda>"]
    return text + (f", where {'; '.join(inner)}" if inner else "")


@lru_cache(maxsize=64)  # of files; without it each rule takes 5 ms, and the list of operations seconds
def _lambdas(file: str) -> dict[int, list[ast.Lambda]]:
    """The lambdas of a file, by the line on which they begin."""
    found: dict[int, list[ast.Lambda]] = {}
    for node in ast.walk(parse("".join(linecache.getlines(file)))):
        if isinstance(node, ast.Lambda):
            found.setdefault(node.lineno, []).append(node)
    return found


def _lambda_source(code: Any) -> str:
    """Return the source of a lambda: of all lambdas in its file, the one whose body is at the position of the code."""
    spans = {(line, column) for line, _, column, _ in code.co_positions()}
    there = _lambdas(code.co_filename).get(code.co_firstlineno, [])
    own = [n for n in there if (n.body.lineno, n.body.col_offset) in spans] or there
    if not own:
        return "lambda"
    node = own[0]
    lines = [line.encode() for line in linecache.getlines(code.co_filename)[node.lineno - 1 : node.end_lineno]]
    lines[-1] = lines[-1][: node.end_col_offset]  # in bytes; `ast.get_source_segment` splits the whole file each time
    lines[0] = lines[0][node.col_offset :]
    return " ".join(b"".join(lines).decode().split())
