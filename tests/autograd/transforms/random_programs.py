"""Random training steps as Python text, to be run as they are and captured; `difference` compares the two runs.

`generate` makes a program from a seed: parameters and modules, an optimizer with some of its options, batches that
change from call to call, and a step of random operations. Each statement is tried while the program is made, so that
its shapes fit and its values are finite. The text is the whole program, which can be pasted and run; `reduced` removes
the lines that a failure does not need.
"""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy

import autograd as ag
from autograd.errors import CaptureError

__all__ = ["FORMS", "OPTIMIZERS", "Program", "Refused", "Run", "bits", "difference", "generate", "reduced", "run"]

CALLS = 7
ROWS, WIDTH, CLASSES = 6, 8, 4

IMPORTS = """\
import numpy
import autograd as ag
import autograd.numpy as np
from autograd import nn, ops, optim
from autograd.optim import schedules
from autograd.scipy.special import logsumexp
"""


@dataclass(frozen=True)
class Program:
    """A random program.

    Attributes
    ----------
    seed : int
    setup : tuple of str
        Lines that make parameters, modules, the optimizer, ``batch(k)`` and ``between(k)``.
    body : tuple of str
        The statements of the step inside its tape, each of which assigns a name.
    loss, before, after, results : str, tuple of str, tuple of str, str
        The loss; lines before the tape; lines after it; and what the step returns.
    forms : frozenset of str
        The forms of its statements: members of `FORMS`.
    """

    seed: int
    setup: tuple[str, ...]
    body: tuple[str, ...]
    loss: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    results: str
    forms: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The program as Python."""
        inside = "".join(f"        {line}\n" for line in (*self.body, f"loss = {self.loss}"))
        step = "".join(f"    {line}\n" for line in self.before) + "    with ag.Tape() as tape:\n" + inside
        step += "".join(f"    {line}\n" for line in (*self.after, f"return {self.results}"))
        return IMPORTS + "\n".join(self.setup) + "\n\ndef step(x, y, i, m, s):\n" + step

    def start(self) -> dict[str, Any]:
        """The names of the program in its initial state."""
        name = f"<program {self.seed}>"
        linecache.cache[name] = len(self.text), None, self.text.splitlines(True), name  # so that errors show lines
        names: dict[str, Any] = {"__name__": "program"}
        exec(compile(self.text, name, "exec"), names)
        return names


class Refused(Exception):
    """A `CaptureError` that has no line, or no fix."""


@dataclass
class Run:
    """What a run has left after each call, and the number of replays."""

    left: list[dict[str, Any]] = field(default_factory=list)
    replays: int = 0
    error: str = ""

    @property
    def is_finite(self) -> bool:
        """Whether the losses are numbers."""
        return all(numpy.isfinite(numpy.frombuffer(*each["loss"])).all() for each in self.left)


def bits(x: Any) -> Any:
    """A value as something that is equal only to the same bits."""
    if isinstance(x, dict):
        return {key: bits(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [bits(part) for part in x]
    x = getattr(x, "array", x)
    if isinstance(x, numpy.ndarray | numpy.generic):
        return x.dtype.str, x.shape, numpy.asarray(x).tobytes()
    return bits(numpy.float64(x)) if isinstance(x, float) else x  # a captured step returns a norm as a Tensor


def state_of(names: dict[str, Any]) -> dict[str, Any]:
    """All that the next step depends on, and the gradients."""
    found = {f"p{k}": bits(p) for k, p in enumerate(names["parameters"])}
    found |= {f"p{k}.grad": bits(p.grad) for k, p in enumerate(names["parameters"])}
    found |= {f"optimizer, {key}": bits(value) for key, value in names["optimizer"].state_dict().items()}
    found |= {f"norm, {name}": bits(x) for name, x in names["norm"].named_buffers()}
    random = ag.random.get_state()
    return found | {"random": (random.seed, dict(random.ordinals))}


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def run(program: Program, wrap: Wrap = lambda step: step) -> Run:
    """Run a program. `wrap` gives the step that is called, such as a captured one."""
    names, found = program.start(), Run()
    step = wrap(names["step"])
    with numpy.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(CALLS):
            names["between"](k)
            try:
                results = step(*names["batch"](k))
            except CaptureError as error:
                found.error = str(error)
                if "fix: " not in found.error or f"<program {program.seed}>:" not in found.error:
                    raise Refused(f"{found.error}\n\n{program.text}") from error
                return found
            loss = numpy.asarray(results[0].array)
            found.left.append(state_of(names) | {"loss": (loss.tobytes(), loss.dtype), "results": bits(results)})
    found.replays = getattr(step, "replays", 0)
    return found


def difference(program: Program, wrap: Wrap) -> tuple[str, Run]:
    """The first difference between a program as it is and with its step wrapped, "" if there is none, and the run."""
    expected, found = run(program), run(program, wrap)
    for k, (a, b) in enumerate(zip(expected.left, found.left, strict=False)):
        for name in a:
            if a[name] != b[name]:
                return f"call {k} left another {name}", found
    return "", found


# -- generation --------------------------------------------------------------------------------------------------------
UNARY = (
    "np.tanh({a})", "np.exp(0.3 * {a})", "np.sin({a})", "np.cos({a})", "nn.relu({a})", "nn.gelu({a})",
    "nn.gelu({a}, 'tanh')", "nn.sigmoid({a})", "nn.silu({a})", "nn.softplus({a})", "nn.leaky_relu({a})", "np.abs({a})",
    "np.sqrt(1 + {a} * {a})", "np.log(1.5 + {a} * {a})", "np.log1p(np.exp(-{a}))", "{a} ** 2", "{a} ** 3", "-{a}",
    "1 / (1 + {a} * {a})", "np.arctan({a})", "np.square({a})", "{a} * {a}", "np.maximum({a}, 0.3)", "np.expm1({a})",
    "np.clip({a}, -0.5, 0.7)", "0.5 * {a}", "{a} + 1", "2 - {a}", "{a} / 3", "1.5 / (2 + np.abs({a}))", "np.sinh({a})",
    "(1 + {a} * {a}) ** 0.5", "(1.1 + {a} * {a}) ** -1.5", "np.sign({a}) * {a}", "np.where({a} > 0, {a}, 0.1 * {a})",
    "np.power(1.5, {a})", "np.logaddexp({a}, 0.1)", "np.float32(0.7) * {a}", "{a} * s", "s - {a}",
    "np.cbrt(2 + {a} * {a})", "nn.dropout({a}, 0.3)", "{a} * ag.random.uniform(ag.random.next_key('scale'), {a}.shape)",
    "ag.stop_gradient({a}) * {a}", "({a} > 0.1) * {a}", "({a} == {a}) + {a}", "{a} + numpy.arange({a}.shape[-1])",
    "{a} * numpy.ones({a}.shape[-1:], 'float32')", "{a}.astype('float64')", "{a}.astype('float32')",
    "{a} + {a}", "{a} * {a} * {a}", "{a} * ({a}.size / 50)", "np.exp2(0.2 * {a})", "np.log2(2 + {a} * {a})",
)  # fmt: skip
BINARY = (
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / (2 + {b} * {b})", "np.maximum({a}, {b})", "np.minimum({a}, {b})",
    "np.where({a} > {b}, {a}, 0.5 * {b})", "np.logaddexp({a}, {b})", "np.arctan2({a}, 2 + {b} * {b})",
    "np.hypot({a}, 1 + np.abs({b}))", "{a} - 2 * {b}", "({a} <= {b}) * {a}", "{a} * np.tanh({b}) + {b}",
)  # fmt: skip
REDUCTIONS = (
    "{a}.sum({axis}, keepdims={keep})", "{a}.mean({axis}, keepdims={keep})", "np.max({a}, {axis}, keepdims={keep})",
    "np.min({a}, {axis}, keepdims={keep})", "np.var({a}, {axis}, keepdims={keep})",
    "np.std({a}, {axis}, keepdims={keep})", "logsumexp({a}, axis={axis}, keepdims={keep})",
    "np.prod(np.tanh({a}), {axis}, keepdims={keep})", "np.linalg.norm(1 + {a} * {a}, axis={axis}, keepdims={keep})",
)  # fmt: skip
ALONG = (
    "nn.softmax({a}, {dim})", "nn.log_softmax({a}, {dim})", "np.cumsum({a}, {dim})", "np.sort({a}, {dim})",
    "np.flip({a}, {dim})", "np.roll({a}, 1, {dim})", "{a} - {a}.mean({dim}, keepdims=True)",
    "np.repeat({a}, 2, {dim})", "np.concatenate([{a}, {a}], {dim})", "np.stack([{a}, 2 * {a}], {dim})",
    "np.take({a}, i, {dim})", "np.split({a}, [1, 3], {dim})[1]", "sum(np.split({a}, 2, {dim}))",
    "np.diff({a}, axis={dim})",
    "np.take_along_axis({a}, np.argsort(ag.stop_gradient({a}), {dim}), {dim})", "np.expand_dims({a}, {dim})",
    "np.cumprod(np.tanh({a}), {dim})", "{a} / np.max(1 + np.abs({a}), {dim}, keepdims=True)",
)  # fmt: skip
SHAPES = (
    "{a}.T", "{a}.reshape(-1)", "np.swapaxes({a}, 0, -1)", "np.moveaxis({a}, 0, -1)", "{a}[None]", "{a}[..., None]",
    "np.squeeze({a})", "np.broadcast_to({a}, (2, *{a}.shape))", "np.ravel({a})", "{a}.reshape({a}.shape[0], -1)",
    "{a}.reshape(2, -1)", "np.tile({a}, 2)", "np.pad({a}, 1)", "np.transpose({a}).reshape({a}.shape)",
)  # fmt: skip
SLICES = (
    "{a}[1:]", "{a}[:-1]", "{a}[::2]", "{a}[::-1]", "{a}[0]", "{a}[-1]", "{a}[..., 0]", "{a}[..., 1:3]", "{a}[:, :2]",
    "{a}[:, 1]", "{a}[:2, ..., :3]", "{a}[i]", "{a}[:, i]", "{a}[i, i]", "{a}[[0, 2, 2]]", "{a}[1:3] * {a}[:2]",
    "{a}[..., :2] + {a}[..., -2:]", "np.concatenate([{a}[2:], {a}[:2]])", "{a}[..., ::-1] * {a}", "{a}[i][:, None]",
    "{a}[i] - {a}[:1]", "np.concatenate([{a}[:, :1], {a}[:, 1:4] * 2, {a}[:, 4:]], 1)",
)  # fmt: skip
PRODUCTS = (
    "{a} @ {b}", "{a} @ {b}.T", "{a}.T @ {b}", "np.dot({a}, {b})", "np.einsum('ij,kj->ik', {a}, {b})",
    "np.outer({a}, {b})",
    "np.einsum('ij,ij->i', {a}, {b})", "np.tensordot({a}, {b}, 1)", "{a} @ np.swapaxes({b}, -1, -2)",
    "({a}[:, None] * {b}).sum(-1)", "np.linalg.solve({b}.T @ {b} + 3 * numpy.eye({b}.shape[1]), {a}.T)",
    "np.linalg.inv({b}.T @ {b} + 2 * numpy.eye({b}.shape[1]))", "np.kron({a}[:2, :2], {b}[:2, :2])",
)  # fmt: skip
LAYERS = (
    "linear({a})", "norm({a})", "layer_norm({a})", "ops.linear({a}, p0, p1)", "nn.rms_norm({a}, (8,))", "{a} @ p0 + p1",
    "nn.layer_norm({a}, (8,), p1, p1)", "cell({a}, np.tanh({a}))", "nn.embedding(i, p0)", "p0[i]",
    "nn.embedding(y, p0)", "nn.sigmoid(linear({a})[:, :4]) * np.tanh(linear({a})[:, 4:])",
    "nn.scaled_dot_product_attention({a}[None], {a}[None], {a}[None], is_causal=True)[0]", "linear({a}) + {a}",
    "nn.sigmoid(linear({a})) * {a}", "ops.linear({a}, p0, p1) @ p0", "np.where(m, {a}, -{a})", "{a} * m", "x * {a}",
    "np.where(m, {a}, x)", "nn.functional.conv1d({a}[None, :, :], kernel)[0]", "np.maximum({a} @ p0 + p1, 0)",
    "ag.grad(lambda z: (np.tanh(z) * {a}).sum())({a})", "ag.grad(lambda z: (np.sin(z) * {a}).sum())(p0[:6])",
)  # fmt: skip
LOSSES = (
    "nn.cross_entropy({c}, y)", "nn.cross_entropy({c}, y, reduction='sum') / 6", "(({f} - x.mean()) ** 2).mean()",
    "nn.l1_loss({f}, 0.3 + 0 * {f})", "nn.mse_loss({f}, 0 * {f} + 1)", "nn.smooth_l1_loss({f}, 0 * {f})",
    "nn.binary_cross_entropy_with_logits({w}, 1.0 * m)",
    "-np.take_along_axis(nn.log_softmax({c}, -1), y[:, None], 1).mean()", "nn.nll_loss(nn.log_softmax({c}, -1), y)",
    "nn.cross_entropy({c}, y, label_smoothing=0.1)",
    "nn.cross_entropy({c}, y, weight=numpy.array([1, 2, 1, 0.5], 'float32'))",
)  # fmt: skip
REFUSED = ("logsumexp({f}.reshape(-1))", "{f}[{f} > 0.2].sum()", "({f}.sum() * numpy.float64(numpy.sum(y)))")
"""Losses that a captured step refuses: a decision on values, or a constant that is computed from the labels."""

OPTIMIZERS = (
    "SGD({ps}, {lr})", "SGD({ps}, {lr}, 0.9)", "SGD({ps}, {lr}, 0.9, weight_decay=0.01)", "SGD({ps}, {lr}, 0.9, 0.1)",
    "SGD({ps}, {lr}, 0.9, nesterov=True)", "SGD({ps}, {lr}, weight_decay=0.1)", "SGD({ps}, {lr}, 0.5, maximize=True)",
    "Adam({ps}, {lr})", "Adam({ps}, {lr}, (0.8, 0.99), weight_decay=0.01)", "Adam({ps}, {lr}, amsgrad=True)",
    "Adam({ps}, {lr}, maximize=True)", "AdamW({ps}, {lr})", "AdamW({ps}, {lr}, weight_decay=0.1, amsgrad=True)",
    "RMSprop({ps}, {lr})", "RMSprop({ps}, {lr}, momentum=0.9, centered=True)",
    "RMSprop({ps}, {lr}, 0.9, weight_decay=0.01)",
    "Adagrad({ps}, {lr})", "Adagrad({ps}, {lr}, 0.1, 0.01, 0.1)", "LARS({ps}, {lr})", "LAMB({ps}, {lr})",
    "LAMB({ps}, {lr}, weight_decay=0.1)", "RMSprop({ps}, {lr}, maximize=True)",
)  # fmt: skip
RATES = (
    "0.01", "0.01", "0.003", "schedules.exponential_lr(0.02, 0.9)", "schedules.step_lr(0.02, 2)",
    "schedules.warmup_cosine(0.02, 3, 10)", "lambda n: 0.01 / (1 + n)",
)  # fmt: skip
GROUPS = (
    "parameters", "parameters", "[{'params': parameters[:2], 'lr': 0.02}, {'params': parameters[2:]}]",
    "[{'params': parameters[:1], 'weight_decay': 0.1}, {'params': parameters[1:]}]",
)  # fmt: skip
FORMS = frozenset((*UNARY, *BINARY, *REDUCTIONS, *ALONG, *SHAPES, *SLICES, *PRODUCTS, *LAYERS, *LOSSES))
ATTEMPTS = 20


class _Builder:
    """A program that is being made: its lines so far, and the values that they have at the first batch."""

    def __init__(self, seed: int):
        self.random = numpy.random.default_rng(seed)
        self.seed, self.body, self.forms = seed, list[str](), set[str]()
        self.setup = self._setup()
        scratch = Program(seed, tuple(self.setup), (), "0", (), (), "0")
        self.names = scratch.start()
        x, y, i, m, s = (ag.tensor(a) for a in self.names["batch"](0))
        self.names |= {"x": x, "y": y, "i": i, "m": m, "s": s}
        self.values: dict[str, Any] = {"x": x} | {f"p{k}": p for k, p in enumerate(self.names["parameters"][:4])}

    def pick(self, of: Sequence[Any]) -> Any:
        """One of several."""
        return of[int(self.random.integers(len(of)))]

    def chance(self, p: float) -> bool:
        """True with a probability."""
        return bool(self.random.random() < p)

    def _setup(self) -> list[str]:
        dtype = "float64" if self.chance(0.25) else "float32"
        of_data = "float64" if self.chance(0.1) else dtype
        optimizer = OPTIMIZERS[self.seed // ATTEMPTS % len(OPTIMIZERS)]
        optimizer = optimizer.format(ps=self.pick(GROUPS), lr=self.pick(RATES))
        label = "-100 if k == 5 and r == 2 else " if self.chance(0.15) else ""
        short = "5 if k == 4 else " if self.chance(0.15) else ""
        made = "ag.tensor({})" if self.chance(0.5) else "{}"
        data = self.pick(("{}", "{}", "{}[:, ::-1]", "numpy.asfortranarray({})", "numpy.repeat({}, 2, 1)[:, ::2]"))
        x = data.format(f"random.standard_normal((rows, {WIDTH})).astype('{of_data}')")
        between = "pass"
        has_schedule = any(word in optimizer for word in ("schedules", "lambda", "params"))
        if not has_schedule and self.chance(0.2):
            between = "optimizer.lr = 0.01 if k < 5 else 0.004"
        elif self.chance(0.1):
            between = "norm.train(k != 4)"
        return [
            f"ag.random.seed({self.seed})",
            f"draw = numpy.random.default_rng({self.seed})",
            f"p0, p1, p2, p3 = [ag.Parameter((draw.standard_normal(s) * 0.4).astype('{dtype}'), name=f'p{{k}}')",
            f"                  for k, s in enumerate([({WIDTH}, {WIDTH}), ({WIDTH},), ({WIDTH}, {CLASSES}), (6, 1)])]",
            f"linear, norm = nn.Linear({WIDTH}, {WIDTH}), nn.BatchNorm1d({WIDTH})",
            f"layer_norm, cell = nn.LayerNorm({WIDTH}), nn.GRUCell({WIDTH}, {WIDTH})",
            f"kernel = ag.Parameter((draw.standard_normal((6, 6, 1)) * 0.3).astype('{dtype}'), name='kernel')",
            "parameters = [p0, p1, p2, p3, kernel, *linear.parameters(), *norm.parameters(), *layer_norm.parameters(),",
            "              *cell.parameters()]",
            f"optimizer = optim.{optimizer}",
            "",
            "def batch(k):",
            "    random = numpy.random.default_rng(k)",
            f"    rows = {short}{ROWS}",
            f"    x = {x}",
            f"    y = numpy.array([{label}int(random.integers({CLASSES})) for r in range(rows)])",
            "    i = random.integers(0, 4, 5)",
            f"    m = random.random((rows, {WIDTH})) < 0.7",
            f"    s = numpy.array(random.random(), '{dtype}')",
            f"    return {', '.join(made.format(n) for n in 'xyims')}",
            "",
            "def between(k):",
            f"    {between}",
        ]

    def some(self, width: int | None = None) -> str:
        """A value, of a last extent where it is given; the last ones more often."""
        fits = [name for name, v in self.values.items() if width is None or v.array.shape[-1:] == (width,)]
        return fits[-1] if self.chance(0.4) else str(self.pick(fits))

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, or None if it is refused or not of small finite numbers."""
        try:
            with numpy.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = eval(expression, self.names)
        except Exception:  # shapes that do not fit, an option that is refused
            return None
        array = getattr(found, "array", None)
        if array is None or array.dtype.kind != "f" or not 0 < array.size <= 2000 or array.ndim > 4:
            return None
        return found if numpy.isfinite(array).all() and abs(array).max() < 50 else None

    def statement(self) -> None:
        """Add a statement, if the one that is tried fits."""
        kind = int(self.random.integers(12))
        a = self.some(width=WIDTH) if kind in (0, 1, 2) else self.some()
        b = self.some()
        dims = self.values[a].array.ndim
        if kind <= 2:
            form = self.pick(LAYERS)
        elif kind == 3:
            form = self.pick(PRODUCTS)
        elif kind == 4:
            form = self.pick(REDUCTIONS)
        elif kind == 5:
            form = self.pick(SHAPES)
        elif kind == 6:
            form = self.pick(SLICES)
        elif kind == 7:
            form = self.pick(ALONG)
        elif kind <= 9:
            form = self.pick(BINARY)
        else:
            form = self.pick(UNARY)
        axes = ["None", *map(str, range(dims)), "-1"] + (["(0, 1)"] if dims > 1 else [])
        expression = form.format(a=a, b=b, axis=self.pick(axes), keep=self.chance(0.5), dim=self.pick(axes[1:]))
        found = self.evaluate(expression)
        if found is not None:
            name = f"v{len(self.body)}"
            self.body.append(f"{name} = {expression}")
            self.values[name] = self.names[name] = found
            self.forms.add(form)

    def made(self) -> Program:
        """The program."""
        count = int(self.random.integers(4, 22))
        for _ in range(6 * count):
            if len(self.body) < count:
                self.statement()
        last = list(self.values)[-6:]
        c = f"({self.some(width=WIDTH)}.reshape(-1, 8)[:1] + x @ p0) @ p2"
        words = {"c": c, "f": self.pick(last), "w": f"x + {self.some(width=WIDTH)}.reshape(-1, 8)[:1]"}
        form = self.pick(REFUSED if self.chance(0.05) else LOSSES)
        self.forms.add(form)
        terms = [form.format(**words)]
        terms += [f"0.1 * ({v} * {v}).mean()" for v in last if self.chance(0.7)]
        if self.chance(0.3):
            terms.append("1e-3 * sum((p * p).sum() for p in parameters[:4])")
        before = [f"{n} = ag.tensor({n})" for n in "xyims" if n != "i" or self.chance(0.5)]
        zeros = int(self.random.integers(3))
        if zeros < 2:
            before.append("optimizer.zero_grad()")
        after = ["tape.backward(loss)"]
        results = ["loss", self.pick(last)]
        if self.chance(0.15):
            after.insert(0, f"found = tape.backward(loss, wanted=[{self.pick(last)}], retain=True)[0]")
            results.append("found")
        if self.chance(0.15):  # another microbatch
            more = f"more = ((x @ p0 + p1) ** 2).mean() + ({self.pick(UNARY).format(a='p2')}).sum()"
            after += ["with ag.Tape() as tape:", f"    {more}", "tape.backward(more)"]
        clip = self.random.random()
        if clip < 0.15:
            after.append("length = optim.clip_grad_norm_(parameters, 0.5)")
            results.append("length")
        elif clip < 0.25:
            after.append("optim.clip_grad_value_(parameters, 0.1)")
        after.append("optimizer.step()")
        if zeros == 2:
            after.append("optimizer.zero_grad()")
        return Program(self.seed, tuple(self.setup), tuple(self.body), " + ".join(terms), tuple(before), tuple(after),
                       ", ".join(results), frozenset(self.forms))  # fmt: skip


def generate(seed: int) -> Program:
    """The program of a seed: the first of its attempts that runs as it is, with a loss that is a number."""
    for attempt in range(ATTEMPTS):
        program = _Builder(ATTEMPTS * seed + attempt).made()
        try:
            if run(program).is_finite:
                return program
        except Exception:  # such as a statement that does not fit a shorter batch
            continue
    raise AssertionError(f"seed {seed} has no program")


def reduced(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The program without the statements, results and terms of its loss that it does not need to fail."""

    def still(other: Program) -> bool:
        try:
            return fails(other)
        except Exception:  # a name is gone
            return False

    for change in ({"results": "loss,"}, {"after": ("tape.backward(loss)",)}, {"loss": "(p0 * p0).mean()"}):
        other = replace(program, **change)
        program = other if still(other) else program
    terms = program.loss.split(" + 0.1 * ")
    for k in reversed(range(len(terms))):
        rest = terms[:k] + terms[k + 1 :]
        if rest and still(replace(program, loss=" + 0.1 * ".join(rest))):
            program, terms = replace(program, loss=" + 0.1 * ".join(rest)), rest
    for k in reversed(range(len(program.body))):
        other = replace(program, body=program.body[:k] + program.body[k + 1 :])
        if still(other):
            program = other
    return program
