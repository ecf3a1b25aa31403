"""Compiler: the NumPy calls of a captured step as few loops of machine code, with the bits of these calls.

================  ====================================================================================================
`nodes`           memory, operands that lie in it, and the calls of NumPy between them
`numbers`         Python numbers that may change from step to step
`trace`           arrays that note the calls of NumPy
`plan`            nodes as groups, each of which is one loop or one call, and places for values
`rows`            updates of whole tables that change few rows, as updates of these rows
`program`         a plan in memory: tables of calls, and what Python does between them, as lines of one function
`text`            functions of Python that are written as text
`identities`      values that must be the objects that they were, compared by machine code
`loops`           descriptions of loops over elements
`operations`      ufuncs, casts and constants as LLVM's instructions, with NumPy's bits
`nests`           loops over dimensions, with steps inside; gathers and scatters
`reductions`      sums, products and extremes in NumPy's order
`emit`            the text of a loop in LLVM's intermediate representation
`build`           compiles a text, and keeps the code in a store on disk
`walker`          the text of the function that runs a table
`machine`         tables of calls: compiled loops and NumPy's inner loops
`gemm`            products of matrices in code of our own
`linear_algebra`  products and functions of `numpy.linalg` as rows of a table
================  ====================================================================================================

Nothing is declared by operations. LLVM comes with the extra ``fast``; without it the nodes are calls of NumPy.
"""
