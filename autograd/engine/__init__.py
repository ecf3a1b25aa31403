"""The engine: Tensors, the tape, and the calls and derivatives of declared operations.

In order of dependence the files are `recording` (the list of nodes), `state` (the state of a thread), `tensor`,
`deferred`, `tape` (the sweeps), `parameter` (leaves), `checked_pull` (recorded sweeps, and the check of a rule's
layouts), `promotion`, `dispatch` (one call, and one step of a sweep), `forward_mode`, `primitive` (the declaration of
an operation), and `multi_output`. Helpers are `events`, `saved_arrays`, `broadcasting` and `pytree`.
"""
