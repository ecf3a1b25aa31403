"""ringtape's core: reverse-mode automatic differentiation on a tape that knows layouts.

Nothing here talks to another rank. ``import autograd as ag, autograd.numpy as np``.

The engine, in the order in which it reads: `tensor`, a value and its place on a tape; `tape`, the list of operations
and the sweeps over it; `dispatch`, what a call does and what one step of a sweep does; `primitive`, how an operation is
declared (adding one is one declaration: see the example there); `layout`, the labels, and `inference`, what operations
make of them. Beside them, one subject each: `leaves`, `entries` (how leaves come on a tape), `saved` (arrays that a
tape keeps read-only), `seeds` (what a sweep starts from), `careful` (recorded sweeps, and the proof of labels),
`tangents`, `promotion`, `broadcasting`, `dims`, `methods` (operators), `deferred`, `hooks` (marks, effects, scopes),
`explain` (the texts of layout errors), `describe`, `grid`, `parts`, `ranknumbers`, `ranklabels`.
"""

from __future__ import annotations

from ._installed import refuse_two_owners

refuse_two_owners()  # before anything of a half-overwritten package is imported, hence the imports below

from . import _moved  # noqa: E402, I001 - before what looks for names in their old places
from . import errors, events, nn, optim, random, testing  # noqa: E402
from .errors import *  # noqa: E402
from .hooks import scope  # noqa: E402
from .layout import C, D, I, Layout, P, R, Rooted, Shard, V  # noqa: E402
from .leaves import Leaf, Parameter, constant, tensor  # noqa: E402
from .ops import stop_gradient  # noqa: E402
from .primitive import op, registry  # noqa: E402
from .tape import Tape, no_grad  # noqa: E402
from .tensor import Tensor  # noqa: E402
from .transforms import grad, jvp, value_and_grad, vjp  # noqa: E402

__all__ = [
    "C", "D", "I", "Layout", "Leaf", "P", "Parameter", "R", "Rooted", "Shard", "Tape", "Tensor", "V", "constant",
    "errors", "events", "grad", "jvp", "nn", "no_grad", "op", "optim", "random", "registry", "scope", "stop_gradient",
    "tensor", "testing", "value_and_grad", "vjp",
]  # fmt: skip
__all__ += errors.__all__
