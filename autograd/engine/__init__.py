"""The engine: Tensors, the tape, and the calls and derivatives of declared operations.

In order of dependence the files are `locks` (read-only arrays), `recording` (the list of nodes), `state` (the state of
a thread), `tensor`, `deferred`, `promotion`, `objective` (where a sweep may start), `sweep` (one replay), `deferral`,
`tape` (what users open), `leaves`, `checked_pull` (recorded sweeps, and the check of a rule's layouts), `dispatch` (one
call, and one step of a sweep), `forward_mode`, `primitive` (the declaration of an operation), and `multi_output`.
Helpers are `events`, `pytree` and `whole`.
"""
