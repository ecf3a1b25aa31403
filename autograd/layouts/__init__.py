"""Layouts: how a value is distributed over the ranks of a mesh, and the layout of an operation's result.

`layout` defines labels and layouts, `inference` infers the layout of an operation's result, `messages` writes the text
of layout errors, `partition` splits a dimension into parts, and `rank_values` has numbers that differ between ranks.
"""
