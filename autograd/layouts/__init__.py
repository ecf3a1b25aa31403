"""Layouts: what the ranks of a mesh hold of a value, and the layout of an operation's result.

`layout` has the labels and the layouts, `inference` the layout of an operation's result, `messages` the text of layout
errors, `partition` the partition of a dimension, and `rank_values` numbers that differ between ranks.
"""
