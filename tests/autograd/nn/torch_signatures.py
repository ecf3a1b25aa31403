"""Print torch's signatures as JSON, of the names that are read as JSON from stdin. It runs with torch's Python.

Where torch has several overloads, all are printed. A signature is the text between the parentheses of a ``def``.
"""

import ast
import inspect
import json
import re
import sys
import typing
from importlib import import_module
from pathlib import Path

import torch

OF_METHODS = {"Module": torch.nn.Module, "Optimizer": torch.optim.Optimizer}


def text_of(signature):
    """The parameters without annotations; a default that is no plain number, text or tuple is ``...``."""
    found, has_star = [], False
    for p in list(signature.parameters.values()):
        if p.kind is p.KEYWORD_ONLY and not has_star:
            found.append("*")
            has_star = True
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        has_star = has_star or p.kind is p.VAR_POSITIONAL
        default = p.default
        plain = default is None or isinstance(default, (bool, int, float, str, tuple))
        found.append(star + p.name + ("" if default is p.empty else f"={default!r}" if plain else "=..."))
    return ", ".join(name for name in found if name != "self")


def signatures(function):
    """The signatures of a function: its overloads, its own, or the one that begins its docstring."""
    overloads = typing.get_overloads(function) if inspect.isfunction(function) else []
    if overloads:
        return [text_of(inspect.signature(each)) for each in overloads]
    inner = getattr(function, "__wrapped__", function)
    try:
        own = text_of(inspect.signature(inner))
    except ValueError:
        own = "*args, **kwargs"
    if own != "*args, **kwargs":
        return [own]
    if function.__name__ == "__init__":  # that of torch.nn.Module, which takes nothing
        return [""]
    in_doc = re.match(r"\s*\w+\(([^)]*(?:\(\))?[^)]*)\)\s*->", inspect.getdoc(function) or "")
    if in_doc is None:  # torch.nn.functional.max_pool2d chooses between two functions
        return signatures(getattr(torch.nn.functional, function.__name__ + "_with_indices"))
    return [" ".join(in_doc[1].split())]


def unique(texts):
    """The texts, each once, without the signature of an implementation of overloads."""
    return list(dict.fromkeys(text for text in texts if len(texts) == 1 or text not in ("*args, **kwargs", "**kwargs")))


def tensor_methods():
    """All overloads of the methods of torch.Tensor, from the stubs."""
    stubs = ast.parse((Path(torch.__file__).parent / "_C" / "__init__.pyi").read_text())
    (found,) = (node for node in stubs.body if isinstance(node, ast.ClassDef) and node.name == "TensorBase")
    methods = {}
    for node in found.body:
        if isinstance(node, ast.FunctionDef) and not any("property" in ast.dump(x) for x in node.decorator_list):
            arguments = node.args
            for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg):
                if each is not None:
                    each.annotation = None
            text = re.sub(r"^self(, )?(/(, )?)?", "", ast.unparse(arguments))
            methods.setdefault(node.name, []).append(text)
    return methods


def of(section, names):
    """Each name's overloads; None where torch has no such name."""
    if section == "Tensor":
        methods = tensor_methods()
        own = {name: getattr(torch.Tensor, name, None) for name in names}
        written = {name: signatures(x) for name, x in own.items() if inspect.isfunction(x)}
        found = {name: written.get(name) or methods.get(name) for name in names}
        return {name: None if texts is None else unique(texts) for name, texts in found.items()}
    found = {}
    for name in names:
        if section in OF_METHODS:
            function = getattr(OF_METHODS[section], name, None)
        else:
            function = import_module("torch." + section)
            owner, _, method = name.partition(".")
            function = getattr(function, owner, None)
            if method and function is not None:
                function = getattr(function, method)
            if isinstance(function, type):
                function = function.__init__
        found[name] = None if not callable(function) else unique(signatures(function))
    return found


def states(expressions):
    """The names and shapes in the state_dict of each module."""
    return {text: {name: list(x.shape) for name, x in eval("torch.nn." + text).state_dict().items()}
            for text in expressions}  # fmt: skip


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    answer = {"torch": torch.__version__.split("+")[0], "states": states(asked.pop("states"))}
    json.dump(answer | {section: of(section, names) for section, names in asked.items()}, sys.stdout)
