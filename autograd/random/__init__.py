"""Random numbers whose values do not depend on the number of ranks.

A random number is a function of a *key* (seed, name, step) and of the position of its element in the logical tensor,
the tensor that all ranks hold together. Each rank generates its part alone, bitwise equal to the same slice of the
whole; a recomputation gets the same numbers; and 3 ranks get the numbers that 8 ranks get. docs/reference/random.rst
has the layouts of draws, and the generator.

Parameters and results that `uniform`, `normal`, `truncated_normal`, `integers` and `bernoulli` have in common:

key
    The stream, for one draw only: two draws get the same random words. `Key.fold` and `Key.at` derive other keys.
shape
    The shape of the logical tensor, the same on all ranks; or a Tensor, whose shape, layout and device the draw takes.
    Numbers that are drawn on a device are bitwise those of the host.
part
    The part to generate: one slice per dimension, with start and stop and without a step. By default everything.
    Not allowed together with a Tensor, whose layout determines the part.
dtype
    float64, float32 or float16. Numbers are generated in float64 and then rounded.
returns
    The part, bitwise equal to the slice ``[part]`` of the whole draw: an array, or, inside a mesh and without
    `part`, a Tensor with a layout.
raises
    ShapeError, DtypeError; LayoutError if `shape` contains the extent of a rank's part, or is a Tensor that is Varying
    on an axis that is not one of the key, or a Shard whose extents the ranks have not agreed on.
"""

from __future__ import annotations

from ..errors import answering
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

globals()["__getattr__"] = answering(__name__)
