"""The directives of the reference: an entry for every public name of a module, made from docstrings and declarations.

``.. public-names:: autograd.nn`` documents the names in ``__all__``. A name that is documented with another module
(``collectives.R`` is ``autograd.R``) gets an entry that links there. ``.. numpy-names:: autograd.numpy`` makes one
table of the names that follow NumPy.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from autograd.engine.primitive import Primitive, registry
from autograd.layouts.layout import Label
from autograd.testing.listing import row

MODULES = (
    "autograd.errors", "autograd", "autograd.events", "autograd.numpy", "autograd.numpy.linalg", "autograd.numpy.fft",
    "autograd.scipy.special", "autograd.scipy.linalg", "autograd.scipy.signal", "autograd.scipy.integrate",
    "autograd.scipy.stats.beta", "autograd.scipy.stats.chi2", "autograd.scipy.stats.dirichlet",
    "autograd.scipy.stats.gamma", "autograd.scipy.stats.multivariate_normal", "autograd.scipy.stats.norm",
    "autograd.scipy.stats.poisson", "autograd.scipy.stats.t", "autograd.nn", "autograd.nn.functional",
    "autograd.nn.init", "autograd.nn.utils", "autograd.optim", "autograd.optim.schedules", "autograd.random",
    "autograd.data", "autograd.testing", "autograd.extend", "autograd.misc", "autograd.misc.fixed_points",
    "autograd.misc.optimizers", "parallel.data", "parallel.tensor", "parallel.pipeline", "parallel.context",
    "parallel.expert", "parallel.runs", "parallel.checkpoint", "parallel.elastic", "parallel.launch",
    "parallel", "collectives", "collectives.testing", "collectives.testing.faults",
    "collectives.inspect.record", "collectives.page", "collectives.audit",
)  # fmt: skip
"""The public modules. A name of several of them is documented with the first."""

NUMPY = {"autograd.numpy": "numpy", "autograd.numpy.linalg": "numpy.linalg", "autograd.numpy.fft": "numpy.fft"}
"""The modules that follow NumPy, and which of its modules."""


def load(module: str) -> Any:
    """Import a module by its public name, which may be an attribute: `autograd.events`."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        parent, _, name = module.rpartition(".")
        return getattr(import_module(parent), name)


def names(module: str) -> dict[str, Any]:
    """The public names of a module and their objects, in alphabetical order, without modules that have a page."""
    found = {name: getattr(load(module), name) for name in load(module).__all__}
    pages = [load(other) for other in MODULES]
    chosen = {name: x for name, x in found.items() if not (isinstance(x, types.ModuleType) and x in pages)}
    return dict(sorted(chosen.items(), key=lambda item: item[0].lower()))


def home(module: str, name: str, value: Any) -> str:
    """The qualified name under which an object is documented: its own name, in the first of `MODULES` that has it."""
    if not isinstance(value, bool | int | float | str | None):
        for other in MODULES[: MODULES.index(module)]:
            if getattr(load(other), name, None) is value and name in names(other):
                return f"{other}.{name}"
    called = getattr(value, "__name__", name)  # an alias: `egrad` is `elementwise_grad`
    return f"{module}.{called if names(module).get(called) is value else name}"


def own_doc(value: Any) -> str:
    """The docstring of an object itself: an instance does not have that of its class."""
    text = inspect.getdoc(value) or ""
    is_instance = not isinstance(value, type) and not inspect.isroutine(value)
    return "" if is_instance and text == inspect.getdoc(type(value)) else text


def summary(value: Any) -> str:
    """The first paragraph of a docstring, up to its first full stop."""
    if isinstance(value, Primitive) and not own_doc(value):
        return f"The operation ``{value!r}``.".replace("<operation ", "").replace(">", "")
    if isinstance(value, Label):
        return label_text(value)
    paragraphs = [" ".join(text.split()) for text in own_doc(value).split("\n\n")]
    is_signature = re.match(r"\w+\(", paragraphs[0]) and len(paragraphs) > 1  # of a function of NumPy in C
    paragraph = paragraphs[bool(is_signature)]
    return re.split(r"(?<=[^.][.])\s+(?=[A-Z`])", paragraph)[0]


def label_text(label: Label) -> str:
    """The row of a label in the table of `autograd.layouts.layout`, as a sentence."""
    table = (import_module("autograd.layouts.layout").__doc__ or "").splitlines()
    (line,) = (text for text in table if text.startswith(f"{label.letter} "))
    word, ranks, meaning, cotangent = re.split(r"  +", line.strip())
    return f"{word.split()[1]}. The ranks hold {ranks}; it means {meaning}; the label of its cotangent: {cotangent}."


def declaration(value: Primitive) -> list[str]:
    """Word, saved values, layouts and adjoint of an operation, as lines of reStructuredText."""
    facts = row(value.name)
    lines = [f":Word: ``{facts['word']}``, for the operands {', '.join(f'``{x}``' for x in facts['operands'])}"]
    if facts["saves"]:
        lines.append(f":Saves: {', '.join(f'``{x}``' for x in facts['saves'])}")
    found = {key.split()[0]: label for key, label in facts["layouts"].items() if len(set(key.split())) == 1}
    if found:
        texts = [f"{key} -> {label}" if label else f"{key} is refused" for key, label in found.items()]
        lines.append(f":Layouts: {', '.join(texts)}; all operands have the label on the left")
    for operand, rule in facts["adjoint"].items():
        lines += [f":Adjoint of {operand}:", "   ::", "", *(f"      {line}" for line in rule.splitlines()), ""]
    return lines


def one_line(rule: str) -> str:
    """A rule in one line: a lambda as it is written, a function by its name."""
    named = re.search(r"^def (\w+)", rule, re.MULTILINE)
    return named[1] if named else " ".join(rule.split())


class PublicNames(SphinxDirective):
    """An overview table and an entry for every public name of a module."""

    required_arguments = 1
    option_spec = {"own": lambda text: True}

    def run(self) -> list[nodes.Node]:
        module = self.arguments[0]
        if module not in MODULES:
            raise ExtensionError(f"public-names: {module} is not in MODULES of docs/public_names.py")
        found = names(module)
        if "own" in self.options:  # of a module that follows NumPy
            found = {name: x for name, x in found.items() if not hasattr(load(NUMPY[module]), name)}
        here = {name: x for name, x in found.items() if home(module, name, x) == f"{module}.{name}"}
        lines = [*self.table(module, here), ""]
        if load(module).__name__ != module:  # an attribute: autodoc knows the module by the name of its file
            lines = [f".. py:module:: {module}", "", *lines]
        for name, value in here.items():
            lines += [*self.entry(module, name, value), ""]
        elsewhere = {name: home(module, name, x) for name, x in found.items() if name not in here}
        if elsewhere:
            lines += ["Other names of the same objects:", ""]
        for name, target in elsewhere.items():
            lines += [f".. py:data:: {name}", f"   :module: {module}", "", f"   The same as :py:obj:`{target}`.", ""]
        return self.parse_text_to_nodes_at(lines)

    def parse_text_to_nodes_at(self, lines: list[str]) -> list[nodes.Node]:
        holder = nodes.container()
        holder.document = self.state.document
        self.state.nested_parse(StringList(lines, self.get_source_info()[0]), self.content_offset, holder)
        return list(holder.children)

    def table(self, module: str, found: dict[str, Any]) -> Iterator[str]:
        yield from (".. list-table::", "   :widths: 30 70", "   :class: names", "")
        for name, value in found.items():
            yield from (f"   * - :py:obj:`~{module}.{name}`", f"     - {summary(value)}")

    def entry(self, module: str, name: str, value: Any) -> list[str]:
        if isinstance(value, Primitive):
            text = own_doc(value).splitlines() or [summary(value)]
            signature = f"{name}({', '.join(row(value.name)['operands'])})"
            return [f".. py:function:: {signature}", f"   :module: {module}", "",
                    *(f"   {line}" for line in [*text, "", *declaration(value)])]  # fmt: skip
        if isinstance(value, type) and not isinstance(value, types.GenericAlias):
            return [f".. autoclass:: {module}.{name}", "   :members:"]
        if inspect.isroutine(value):
            return [f".. autofunction:: {module}.{name}"]
        if isinstance(value, Label):
            return [f".. py:data:: {name}", f"   :module: {module}", "", f"   {label_text(value)}"]
        return [f".. py:data:: {name}", f"   :module: {module}", "", *(f"   {x}" for x in attribute_doc(name, value))]


def attribute_doc(name: str, value: Any) -> list[str]:
    """The docstring that follows the assignment of a name, in the module of the library that makes it."""
    for module in [m for m in sys_modules() if getattr(m, name, None) is value]:
        found = ModuleAnalyzer.for_module(module.__name__).find_attr_docs().get(("", name))
        if found:
            return found
    return own_doc(value).splitlines()


def sys_modules() -> list[types.ModuleType]:
    return [m for key, m in sorted(sys.modules.items()) if key.split(".")[0] in ("autograd", "collectives", "parallel")]


class NumpyNames(SphinxDirective):
    """Two tables: the differentiable functions of a module that follows NumPy, and the names that are NumPy's own."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module = self.arguments[0]
        numpy = load(NUMPY[module])
        shared = {name: x for name, x in names(module).items() if hasattr(numpy, name)}
        own = {name: x for name, x in shared.items() if x is not getattr(numpy, name)}
        same = {name: x for name, x in shared.items() if name not in own}
        found: list[nodes.Node] = [self.table(module, ["name", "word", "adjoint", "summary"], own, self.facts)]
        if same:
            found += [nodes.paragraph(text="These names are NumPy's own objects:"),
                      self.table(module, ["name", "kind"], same, self.kind)]  # fmt: skip
        return found

    def facts(self, name: str, value: Any) -> list[nodes.Node]:
        operation = value if isinstance(value, Primitive) else registry.get(getattr(value, "__name__", name))
        original = getattr(load(NUMPY[self.arguments[0]]), name)
        text = self.text(summary(original if isinstance(value, Primitive) and not own_doc(value) else value))
        if operation is None:  # a function made of operations
            return [nodes.Text("-"), nodes.Text("of its operations"), text]
        facts = row(operation.name)
        reason = facts["without_derivative"]
        rules = "; ".join(f"{operand}: {one_line(rule)}" for operand, rule in facts["adjoint"].items())
        shown = nodes.literal(text=rules) if len(rules) < 200 else nodes.Text("see the declaration")
        return [nodes.literal(text=facts["word"]), nodes.Text(reason) if reason else shown, text]

    def kind(self, name: str, value: Any) -> list[nodes.Node]:
        kinds = {types.ModuleType: "module", type: "class"}
        other = "function" if callable(value) else "constant"
        return [nodes.Text(next((name for kind, name in kinds.items() if isinstance(value, kind)), other))]

    def text(self, line: str) -> nodes.Node:
        found = nodes.inline()
        children, _ = self.state.inline_text(line, self.lineno)
        found += children
        return found

    def table(
        self, module: str, heads: list[str], found: dict[str, Any], cells: Callable[..., list[nodes.Node]]
    ) -> nodes.Node:
        table, group, body = nodes.table(classes=["names"]), nodes.tgroup(cols=len(heads)), nodes.tbody()
        table += group
        group += [nodes.colspec(colwidth=1) for _ in heads]
        head = nodes.thead()
        head += _row([nodes.Text(text) for text in heads])
        group += [head, body]
        for name, value in found.items():
            qualified = f"{module}.{name}"
            link = nodes.reference(name, name, refuri=f"https://numpy.org/doc/stable/reference/generated/{NUMPY[module]}"
                                                      f".{name}.html")  # fmt: skip
            entry = _row([link, *cells(name, value)])
            entry["ids"].append(qualified)
            self.env.domains.python_domain.note_object(qualified, "function", qualified, location=entry)
            body += entry
        return table


def _row(cells: list[nodes.Node]) -> nodes.row:
    found = nodes.row()
    for cell in cells:
        paragraph = nodes.paragraph()
        paragraph += cell
        entry = nodes.entry()
        entry += paragraph
        found += entry
    return found


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("public-names", PublicNames)
    app.add_directive("numpy-names", NumpyNames)
    return {"parallel_read_safe": True}
