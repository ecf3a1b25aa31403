"""The parent of the programs that `forking.py` runs: a line of its input is a program, a line of its output its status.

It imports what a program cannot lack without being seen: a program must still import a name to use it, and none of
these packages adds a public name to another. `parallel` would: it loads modules of `autograd` and `collectives`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import types
from typing import Any

import autograd.numpy
import collectives

PRELOADED = (autograd.numpy, collectives)


def wait_for_a_program() -> dict[str, Any] | None:
    """Return in the fork, with its program; or in the parent at the end of the input, with None."""
    gc.freeze()  # a collection in a fork would copy all pages of the parent
    while line := sys.stdin.readline():
        if (child := os.fork()) == 0:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def run(code: str, arguments: list[str], environment: dict[str, str], output: list[str]) -> None:
    """Run a program as Python would, as the module `__main__`."""
    for descriptor, path in enumerate([os.devnull, *output]):
        file = os.open(path, os.O_RDWR)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    sys.path[0] = os.path.dirname(arguments[0])
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = arguments[0]
    try:
        exec(compile(code, arguments[0], "exec"), vars(module))
    except SystemExit:
        raise
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without the frame of this function
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


if program := wait_for_a_program():
    run(**program)
