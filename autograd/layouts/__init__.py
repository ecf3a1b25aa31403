"""Layouts: what the ranks of a mesh hold of a value, and which layouts an operation gives.

`layout` has the labels and the layouts, `inference` the layout of an operation's result, `messages` the text of layout
errors, `partition` the rule that cuts a dimension into parts, and `rank_values` the numbers that differ between ranks.
"""
