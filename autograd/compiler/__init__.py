"""Compiler: the NumPy calls of a captured step as few loops of machine code, with the bits of these calls.

`trace` runs functions on arrays that note each call of NumPy as a node (`nodes`). `plan` fuses nodes over one shape,
and gives each value a place in one block of memory. `emit` makes machine code of each distinct loop, by llvmlite, which
the extra ``fast`` brings, and `machine` walks the table of calls. Nothing is declared by operations.
"""
