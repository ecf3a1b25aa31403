"""Primitives that users declare in HIPS autograd's style, and the vector spaces of their arguments.

`autograd.extend` is the public interface.
"""
