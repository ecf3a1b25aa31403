"""Compiler: loops become machine code, by LLVM, and a table of calls runs it. It needs the extra ``fast``.

============  ========================================================================================================
`loops`       descriptions of loops over elements
`operations`  ufuncs, casts and constants as LLVM's instructions, with NumPy's bits
`close`       functions inside loops that are close to NumPy's, and not its bits
`nests`       loops over dimensions, with steps inside; gathers and scatters
`reductions`  sums, products and extremes in NumPy's order
`emit`        the text of a loop in LLVM's intermediate representation
`build`       compiles a text, and keeps the code in a store on disk
`walker`      the text of the function that runs a table
`machine`     tables of calls: compiled loops, NumPy's inner loops, products
============  ========================================================================================================

Importing this package loads none of them.
"""
