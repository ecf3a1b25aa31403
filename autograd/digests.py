"""BLAKE2b of the standard library, without the rest of `hashlib`.

Importing `hashlib` loads OpenSSL, which takes a twentieth of the start of a program, on every rank.
"""

from __future__ import annotations

try:
    from _blake2 import blake2b  # the same class
except ImportError:  # an interpreter that keeps it elsewhere
    from hashlib import blake2b

__all__ = ["blake2b"]
