"""Checks of what is installed: NumPy's version, and that no other distribution installs a package named `autograd`.

HIPS autograd does. If both are installed in one folder, they overwrite each other's files silently, and a mixture of
the two is imported.
"""

from __future__ import annotations

import os
import re
import sys

import numpy

from .errors import ConflictError, DependencyError

__all__ = ["refuse_old_numpy", "refuse_two_owners"]

# 2.1 is the first with `unstack` and `cumulative_sum`. In 2.1.0 and 2.1.1 all threads but the main one promote by the
# rules of NumPy 1: a float32 divided by an int is a float64 (numpy#27473).
_NUMPY = (2, 1, 2)


def refuse_old_numpy(version: str = numpy.__version__) -> None:
    """Raise DependencyError if this version of NumPy is older than the oldest that is supported."""
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < _NUMPY:
        needed = ".".join(map(str, _NUMPY))
        raise DependencyError(
            f"NumPy {version} is installed; needed: {needed} or newer\n  fix: pip install 'numpy>={needed}'"
        )


def refuse_two_owners(folder: str | None = None) -> None:
    """Raise ConflictError if the distribution `autograd` is installed in `folder`.

    By default all site-packages folders and the folder of this package are searched.
    """
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for path in [folder] if folder else {here, *(p for p in sys.path if p.endswith("site-packages"))}:
        try:
            names = os.listdir(path)
        except OSError:
            continue
        for name in names:
            if name.startswith("autograd-") and name.endswith((".dist-info", ".egg-info")):
                raise ConflictError(
                    f"the distribution {name.rsplit('.', 1)[0]} (HIPS autograd) is installed in {path}. Both it and "
                    "ringtape install the package `autograd`, and each overwrites the other's files. Needed: only one "
                    "of them. Fix: pip uninstall autograd, then reinstall ringtape; or use two environments"
                )
