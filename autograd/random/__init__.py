"""Random numbers that do not depend on how many ranks make them.

A number is a function of a *key* (seed, name, step) and of its element's place in the logical tensor, the one that all
ranks hold together. Nothing else enters: no hidden state, no rank, no order of calls. So a rank makes its own part
alone, bitwise equal to the same slice of the whole; a recomputation gets the same numbers; and 3 ranks see what 8 saw.

The words come from Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), whose 128-bit
key is a hash of (seed, name, step). Element i, counted in C order in the logical shape, uses word i of that stream and
no other. What follows is arithmetic that IEEE 754 rounds exactly (+ - * / and the square root), one element at a time:
`numpy.log` and `numpy.cos` differ in their last bit between processors, and copies on two hosts would not be equal.

What `uniform`, `normal`, `truncated_normal`, `integers` and `bernoulli` have in common:

key      The stream. One key is for one draw: two draws from the same key are functions of the same words. `Key.fold`
         and `Key.at` make more.
shape    The shape of the logical tensor, the same on all ranks. Or a Tensor, and the draw is for that Tensor.
part     The part to make: one slice a dimension, with start and stop, without step. All of it by default. Not with a
         Tensor, which knows its part.
dtype    float64, float32 or float16. Numbers are made in float64 and rounded, so dtype changes them by rounding only.
returns  The part, bitwise the slice ``[part]`` of the whole draw: an array; inside a mesh, without `part`, a Tensor
         with labels.
raises   ShapeError if shape is not a shape or part is not inside it; LayoutError if shape is a Tensor that is Varying
         on an axis that the key is not along, or has the extent of a rank's part; DtypeError if dtype is another.

Draws know layouts. Give a Tensor in the place of a shape, and the draw is for that Tensor: of a sharded one this
rank's part, of equal copies equal numbers. Where the ranks hold values of their own (V) there is no logical tensor, and
one key would give them all the same numbers, which is how dropout goes wrong in silence; the key must say that it
differs, `key.along("dp")`. Inside a mesh the draw of a shape is a Tensor labelled D (Drawn): it enters where copies are
equal or sharded on another dimension, becomes a Parameter, or a constant if one says so (`constant`), and is refused
where it meets Varying. A part of it, taken by index, is V; so is a draw with `part`, where the program says whose part
it is. `places` has the table.

In a dry run uniform, normal and bernoulli numbers have a shape only; integers and permutations, by which programs
choose what to do, are as real as ever, and plain arrays.

The files: `keys`, keys and what a thread counts; `words`, the generator; `places`, which part a rank makes; `draws`,
how a draw is made of these; `continuous` and `discrete`, the distributions; `gaussian`, their arithmetic.
"""

from __future__ import annotations

from .continuous import normal, truncated_normal, uniform
from .discrete import bernoulli, integers, permutation
from .keys import Key, State, get_state, next_key, seed, set_state

__all__ = [
    "Key",
    "State",
    "bernoulli",
    "get_state",
    "integers",
    "next_key",
    "normal",
    "permutation",
    "seed",
    "set_state",
    "truncated_normal",
    "uniform",
]
