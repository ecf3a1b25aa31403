"""Compiler: loops become machine code, by LLVM, and a table of calls runs it. It needs the extra ``fast``.

=========  ===========================================================================================================
`loops`    descriptions of loops over elements
`emit`     their text in LLVM's intermediate representation, with NumPy's bits
`build`    compiles a text, and keeps the code in a store on disk
`walker`   the text of the function that runs a table
`machine`  tables of calls: compiled loops, NumPy's inner loops, products
=========  ===========================================================================================================

Importing this package loads none of them.
"""
