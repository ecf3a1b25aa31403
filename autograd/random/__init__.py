"""Random numbers whose values do not depend on the number of ranks.

A random number is a function of a *key* (seed, name, step) and of the position of its element in the logical tensor,
the tensor that all ranks hold together. There is no hidden state. Each rank therefore generates its part alone, bitwise
equal to the same slice of the whole; a recomputation gets the same numbers; and 3 ranks get the numbers that 8 ranks
get.

Parameters and results that `uniform`, `normal`, `truncated_normal`, `integers` and `bernoulli` have in common:

key
    The stream. Use each key for one draw only: two draws with one key use the same random words. `Key.fold` and
    `Key.at` derive other keys.
shape
    The shape of the logical tensor, the same on all ranks; or a Tensor, whose shape and layout the draw takes. Numbers
    for a Tensor on a device are drawn there, bitwise those of the host.
part
    The part to generate: one slice per dimension, with start and stop and without a step. By default everything.
    Not allowed together with a Tensor, whose layout determines the part.
dtype
    float64, float32 or float16. Numbers are generated in float64 and then rounded.
returns
    The part, bitwise equal to the slice ``[part]`` of the whole draw: an array, or, inside a mesh and without
    `part`, a Tensor with a layout.
raises
    ShapeError if `shape` is not a shape or `part` is not inside it. LayoutError if `shape` is a Tensor that is
    Varying on an axis that is not an axis of the key, or a Shard whose extents the ranks have not agreed on, or if
    it contains the extent of a rank's part. DtypeError if `dtype` is not supported.

Layouts. A draw for a Tensor follows the Tensor's layout: a rank of a Shard generates its own part, and ranks with equal
copies generate equal numbers. Ranks of a Varying value have no position in a logical tensor, and with one key they
would all generate the same numbers, the classic silent error of dropout. This is refused unless the key says that the
ranks differ: ``key.along("dp")``; or it has the places of the pieces that each rank holds of one value, as in zigzag
order: ``key.placed(...)``, or `placed` around the model. Inside a mesh, a draw of a shape has the label D (Drawn). D
combines with equal copies and with values that are sharded on another dimension, may become a Parameter, or a constant
by `constant`, and is refused where it meets Varying. A slice of it is D too, unless its bounds depend on
``mesh.axis(name).rank``: then it is V. The labels V and Shard contradict D, so `tensor`, `Parameter` and
``collectives.cast`` refuse them; ``collectives.shard`` gives each rank its part of the draw. A draw with `part` is a
plain array, and so V like any array. The table in `random.placement` lists all cases.

In a dry run, `uniform`, `normal` and `bernoulli` return a shape without values. `integers` and `permutation`, by which
programs decide what to do, return real values.

Implementation. The random words come from Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011), whose 128-bit key is a hash of (seed, name, step). Element i of the logical tensor, in C order, uses word i of
the stream and no other. Words become numbers by operations that IEEE 754 rounds exactly (+ - * / and the square root),
because `numpy.log` and `numpy.cos` differ in the last bit between processors, and copies on two hosts would differ.
"""

from __future__ import annotations

from typing import NoReturn

from ..errors import missing_attribute
from .continuous import normal, truncated_normal, uniform
from .discrete import bernoulli, integers, permutation
from .keys import (
    Key,
    State,
    get_state,
    load_state_dict,
    next_key,
    placed,
    prepare_state_dict,
    seed,
    set_state,
    state_dict,
)

__all__ = [
    "Key", "State", "bernoulli", "get_state", "integers", "load_state_dict", "next_key", "normal", "permutation",
    "placed", "prepare_state_dict", "seed", "set_state", "state_dict", "truncated_normal", "uniform",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    """Say what to use for a name of JAX."""
    raise missing_attribute(__name__, name)
