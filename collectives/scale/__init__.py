"""Scale: wrong factors in a gradient, such as the number of ranks, are told with the factor and the line.

Along each axis the loss is a power of the number of parts, and right is 0. Values decide it, so it is no label: it is a
set of possible integers, or unknown, computed by a walk over the tape. `docs/guides/scale.md` has the law, the algebra
as a table, and what stays silent.

==============  ====================================================================================================
`powers`        `Power`: what is known of a value along one axis, and the arithmetic of sets
`numbers`       plain numbers, and the evidence by which the ranks decide whether one counts their rows
`uses`          one use of an operation: the elements, weights, items and rows of all ranks that it counts
`rules`         the table of rows: operations and collectives whose rule does not follow from their declaration
`walk`          `Walk`: the powers of the values of a recording, computed from its nodes when they are asked for
`sums`           an examined sum over the ranks, as messages show it
`addends`       addends of an examined sum over the ranks: equal ones, terms that count often, unequal means
`examination`   when it happens: at examined sums, and when backward starts; errors and warnings
`microbatches`  losses of one block of `accumulate`
`stages`        losses of the stages of a pipeline, which other ranks do not see
`by_hand`       gradients that the program scales after backward
`messages`      the texts, with the factor, the lines, the counts of the ranks, and the fixes that fit them
==============  ====================================================================================================
"""
