"""Scale: wrong factors in a gradient, such as the number of ranks, are told with the factor and the line.

Gradients are only ever summed; the loss carries all normalisation. So along each axis of the mesh the loss is a *power
of the number of parts*: a sum over this rank's rows has the power -1 (all rows together are n times as many), a mean
over them 0, a sum over the ranks adds 1, a division by the axis's size subtracts 1. Right is 0. Values decide it (is
``/ 4`` the number of ranks, of rows, or a constant?), so a power is no label. It is a *set* of possible integers, or
unknown, and there is a fault if and only if the set is known and 0 is not in it. What cannot be known is silent.

============================================  =======================================================================
value or operation, along one axis            possible powers
============================================  =======================================================================
leaf R, I, C, Shard; P of a sum over a Shard  0
Varying data                                  0: an item, or rows
Varying Parameter, recv, `declare_partial`    unknown: the program's own statement
sum over dimensions of a Varying value        q or q - 1; exactly q - 1 of parts (cast from a Shard, or divided by the
                                              number of all rows)
mean over them                                q, and *averaged*
a dimension that met a whole R dimension      no rows: sum and mean keep q
sum over the ranks, of V                      q + 1; if it is neither averaged nor parts, also q
all_gather of V                               q, and *stacked*: a sum over the stacked dimension is one over the ranks
jointly linear (add, where, stack)            the intersection; empty: unequal terms are added
linear in each (multiply, matmul)             the sum of the operands' powers
homogeneous of degree d (sqrt, divide by x)   d q
other functions                               0 if all operands have 0, else unknown
times or by a number that remembers           that of `autograd.layouts.sizes`
by a plain number                             see `numbers`: the ranks decide together what it counts
============================================  =======================================================================

The modules, each with one subject:

=============  ======================================================================================================
`powers`       `Power`: what is known of a value along one axis, and the arithmetic of sets
`numbers`      the powers of plain numbers, and the *evidence* by which ranks decide whether one counts their rows
`rules`        the table of rows: the rules of operations and collectives that do not follow from their declarations
`walk`         `Walk`: the powers of all values of a recording, computed from its nodes when they are asked for
`addends`      the addends of an examined sum over the ranks: equal ones, terms that count on each rank, unequal means
`examination`  when it happens: at examined sums, and when backward starts; what is an error and what a warning
`messages`     the texts, with the factor, the lines, the counts of the ranks, and the fixes that fit these counts
=============  ======================================================================================================

A recording is examined if it is the 1st, 2nd, 4th, 8th, ... of its mesh with a sum over ranks. There, each sum of
Varying values sends its evidence (the numbers of rows that were summed, and the numbers by which they were divided)
with the fingerprint of the call, without a further message, so that all ranks of the axis decide the same. When
backward starts from an objective, the walk goes on to it. Where only labels and remembered numbers are involved, a
fault is a `ScaleError`; where plain Varying data are, a `ScaleWarning`, once for each line. ``cc.check(scale="error")``
makes it an error, too. Steps that are not examined cost the test of an attribute.
"""
