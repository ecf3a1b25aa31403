"""The proofs of ringtape that only its own tests need, and that are not installed.

====================  =========================================================================================
`operations/`         test cases of all operations, by topic
`registry.py`         the record of operations that the cases make: layouts and counts
`random_programs/`    random SPMD programs: generator, rules, serial evaluation, shrinking, mutants
====================  =========================================================================================

The cases of collectives are in `collectives/testing/`, where ``python -m collectives check`` uses them.
"""
