"""Loaded by every Python that a test starts (`tests/conftest.py`): makes its start and its end shorter.

Tests start hundreds of ranks. A fifth of the time of a short one was garbage collection: while it imports modules, and
four times over all objects when it ends.
"""

import atexit
import gc

gc.set_threshold(100_000, 20, 20)  # importing allocates less
atexit.register(gc.freeze)  # it runs after all other functions that are called at exit
