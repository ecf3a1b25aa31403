"""Ranks of one host that share memory: windows, flags, buffers, and the collectives on them."""
