"""Refuses to run where another distribution owns the package name `autograd` too.

HIPS autograd installs a package of the same name. Two distributions in one folder overwrite each other's files without
a word, so that half of each is imported; there is no good way on from there.
"""

from __future__ import annotations

import os
import sys

from .errors import ConflictError

__all__ = ["refuse_two_owners"]


def refuse_two_owners(folder: str | None = None) -> None:
    """Raise ConflictError if the distribution `autograd` is installed beside this package."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for place in [folder] if folder else {here, *(p for p in sys.path if p.endswith("site-packages"))}:
        try:
            names = os.listdir(place)
        except OSError:
            continue
        for name in names:
            if name.startswith("autograd-") and name.endswith((".dist-info", ".egg-info")):
                raise ConflictError(
                    f"the distribution {name.rsplit('.', 1)[0]} (HIPS autograd) is installed in {place}. It and "
                    f"ringtape "
                    "both own the package `autograd`, and each overwrites the other's files. Needed: one of them. "
                    "Fix: pip uninstall autograd, then reinstall ringtape; or give each an environment of its own"
                )
