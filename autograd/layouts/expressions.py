"""The source text of the expression that the user's program evaluates, for error messages."""

from __future__ import annotations

import ast
import linecache
from types import FrameType, ModuleType

from ..parsing import parse

__all__ = ["operand_text", "texts_with_extents", "variables_of_operands"]

_MOST = 40  # characters of an operand


def operand_text(frame: FrameType, i: int, operation: str = "") -> str:
    """The text of operand `i` of the operator or call that a frame evaluates, like ``y * 2``; "" if it is not known.

    Parameters
    ----------
    frame : frame
        A frame of the user's program.
    i : int
        The index of the operand.
    operation : str
        The name of the operation. The arguments of a call are its operands only if it has the same name; an operation
        without a name has the first argument as its operand.
    """
    node = _evaluated(frame)
    operands: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        operands = [node.left, node.right]
    elif isinstance(node, ast.Call):
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        operands = list(node.args)
        if isinstance(called, ast.Attribute) and not _is_module(frame, called.value):
            operands.insert(0, called.value)  # a method
        if operation not in ("", name):
            operands = []
        elif not operation:
            operands = operands[:1]
    text = ast.unparse(operands[i]) if i < len(operands) else ""
    return text if len(text) <= _MOST else ""


def variables_of_operands(frame: FrameType, operation: str, count: int) -> list[str]:
    """The variables that are the operands of the operation that a frame calls, "" for an operand that is none.

    The frame's variables are not read: Python would keep a copy of them, and with it the arrays, until the frame ends.

    Parameters
    ----------
    frame : frame
        A frame of the user's program.
    operation : str
        A call is of the operation only if it has the same name.
    count : int
        The number of operands.
    """
    node, code = _evaluated(frame), frame.f_code
    operands: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        operands = [node.left, node.right]
    elif isinstance(node, ast.Call):
        called = node.func
        if operation == (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")):
            operands = list(node.args)
            of = called.value if isinstance(called, ast.Attribute) else None
            is_local = getattr(of, "id", "") in (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
            if of is not None and is_local and len(operands) < count:  # a method
                operands.insert(0, of)
    names = [x.id if isinstance(x, ast.Name) else "" for x in operands[:count]]
    return names + [""] * (count - len(names))


def texts_with_extents(frame: FrameType) -> set[str]:
    """The texts of the values whose extents the expression of a frame names: ``x`` for ``x.shape[0]`` or ``len(x)``."""
    found = set()
    node = _evaluated(frame)
    for each in ast.walk(node) if node is not None else ():
        if isinstance(each, ast.Attribute) and each.attr in ("shape", "size"):
            found.add(ast.unparse(each.value))
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "len" and each.args:
            found.add(ast.unparse(each.args[0]))
    return found


def _evaluated(frame: FrameType) -> ast.expr | None:
    """The expression of the instruction that a frame runs; None without the source."""
    code = frame.f_code
    first, last, start, end = list(code.co_positions())[frame.f_lasti // 2]  # an instruction has two bytes
    if first is None or last is None or start is None or end is None:
        return None
    lines = [line.encode() for line in linecache.getlines(code.co_filename, frame.f_globals)[first - 1 : last]]
    if len(lines) != last - first + 1:
        return None
    lines[-1] = lines[-1][:end]  # columns count bytes
    lines[0] = lines[0][start:]
    try:
        expression: ast.expr = parse(f"({b''.join(lines).decode()})", "eval").body
    except (SyntaxError, UnicodeDecodeError):  # a statement, or the file has changed
        return None
    return expression


def _is_module(frame: FrameType, node: ast.expr) -> bool:
    """Whether an expression is the name of a module, like ``np``, or one of a module, like ``np.linalg``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    name = getattr(node, "id", "")
    # not `isinstance`, which asks a foreign object for its class
    return issubclass(type(frame.f_locals.get(name, frame.f_globals.get(name))), ModuleType)
