"""Check that no other distribution installs a package named `autograd`.

HIPS autograd does. If both are installed in one folder, they overwrite each other's files silently, and a mixture of
the two is imported.
"""

from __future__ import annotations

import os
import sys

from .errors import ConflictError

__all__ = ["refuse_two_owners"]


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
