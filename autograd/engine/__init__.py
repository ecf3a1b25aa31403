"""The engine: Tensors, the tape, and what a declared operation does when it is called and differentiated.

The files in the order in which they build on each other: `recording` (the list of nodes), `state` (what belongs to a
thread), `tensor`, `deferred`, `tape` (the sweeps), `parameter` (leaves), `checked_pull` (recorded sweeps, and the check
of a rule's layouts), `promotion`, `dispatch` (one call, one step of a sweep), `forward_mode`, `primitive` (how an
operation is declared), `multi_output`. Beside them: `events`, `saved_arrays`, `broadcasting`, `pytree`.
"""
