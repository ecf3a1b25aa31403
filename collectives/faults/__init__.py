"""Injection of faults into the ranks of a job. `collectives.testing.faults` is its public side, and describes it.

==============  ====================================================================================================
module          contents
==============  ====================================================================================================
`plan`          the kinds of faults, a plan of them, its text, and plans drawn from a seed
`points`        `point`, by which other code names a place where a fault can happen
`injection`     the counts of the ranks, and the faults when their time has come
`one_sided`     windows and clocks whose accesses are counted
==============  ====================================================================================================
"""
