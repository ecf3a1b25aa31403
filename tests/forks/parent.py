"""Forks programs. Each comes over a connection to its socket, which then carries the status with which it ended.

Usage: parent.py DESCRIPTOR MODULE..., the descriptor of a listening socket, and the modules that programs find loaded.

A message is its length in four bytes, and with them the descriptors of files; then code, arguments, environment and
folder, in the format of `marshal`. Without arguments its only file is the listening socket of another parent, which is
forked. A program is killed when its connection is closed, and all of a parent's when the parent's own is.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Program(NamedTuple):
    """What a message asks for."""

    code: str | None  # None: that of the file, or of the module after "-m"
    arguments: list[str]
    environment: dict[bytes, bytes]
    folder: str
    files: list[int]


def forked_program(listening: socket.socket, life: int) -> Program | None:
    """Fork a program for each message. Return in a fork with its program, and here with None when `life` is closed."""
    connections: dict[int, socket.socket] = {}  # of each child
    programs: dict[int, int] = {}  # which child to kill when a connection is closed; forked parents watch their own
    ended, end = os.pipe()
    os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # with a handler, each end of a child writes to the pipe
    signal.set_wakeup_fd(end, warn_on_full_buffer=False)
    poll = select.poll()
    for file in (listening.fileno(), life, ended):
        poll.register(file, select.POLLIN)

    def answer(options: int) -> bool:
        """Send the status of a child that has ended."""
        child, status = os.waitpid(-1, options)
        if child:
            with connections.pop(child) as connection:
                if programs.pop(connection.fileno(), 0):
                    poll.unregister(connection)
                with suppress(OSError):  # nobody waits any more
                    connection.sendall(status.to_bytes(4, "little"))
        return bool(child)

    while True:
        for file, _ in poll.poll():
            if file == listening.fileno():
                connection, _ = listening.accept()
                program = _received(connection)
                if program is None:
                    connection.close()
                    continue
                child = os.fork()
                if child == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.setsid()
                    for other in (listening, *connections.values()):
                        other.close()
                    os.close(ended), os.close(end)
                    nothing = os.open(os.devnull, os.O_RDWR)
                    os.dup2(nothing, life), os.close(nothing)  # it may be the standard input, whose number stays taken
                    if program.arguments:
                        connection.close()
                        return program
                    return forked_program(socket.socket(fileno=program.files[0]), connection.detach())
                for received in program.files:
                    os.close(received)
                connections[child] = connection
                if program.arguments:
                    programs[connection.fileno()] = child
                    poll.register(connection, select.POLLIN)
            elif file == ended:
                os.read(ended, 1024)
                while connections and answer(os.WNOHANG):
                    pass
            elif file in programs:
                poll.unregister(file)
                os.kill(programs.pop(file), signal.SIGKILL)
            elif file == life:
                for child in programs.values():
                    os.kill(child, signal.SIGKILL)
                while connections:
                    answer(0)
                return None


def _received(connection: socket.socket) -> Program | None:
    head, files, _, _ = socket.recv_fds(connection, 4, 8)
    if len(head) < 4:
        return None
    with connection.makefile("rb") as stream:
        return Program(*marshal.loads(stream.read(int.from_bytes(head, "little"))), files)


def run(program: Program) -> None:
    """Run a program as Python would, as the module `__main__`."""
    os.environb.clear()
    os.environb.update(program.environment)
    os.chdir(program.folder)
    streams, others = program.files[:3], program.files[3:]
    for descriptor, file in enumerate(streams):
        os.dup2(file, descriptor)
        os.close(file)
    if is_of_ranks:  # these two read the environment when they are imported
        for name in ("collectives.checks.modes", "collectives"):
            importlib.reload(sys.modules[name])
        if os.environ.get("RINGTAPE_COMPILED") == "0":
            for cached in (compiled.compiled_loops, compiled._found):
                cached.cache_clear()
    for file in others:
        number = int(os.environ["PMI_FD"])
        os.dup2(file, number)
        if file != number:
            os.close(file)
        os.set_inheritable(number, True)
    sys.argv = program.arguments
    if sys.argv[0] == "-m":
        sys.argv = program.arguments[1:]
        sys.path[0] = os.getcwd()
        _guarded(lambda: runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True))
        return
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = sys.argv[0]

    def execute() -> None:
        text = Path(sys.argv[0]).read_bytes() if program.code is None else program.code
        exec(compile(text, sys.argv[0], "exec"), vars(module))

    _guarded(execute)


def _guarded(execute: Callable[[], object]) -> None:
    """Handle an error as Python does at the end of a program, without the frames of this file."""
    try:
        execute()
    except SystemExit:
        raise
    except BaseException as error:
        for _ in range(2):
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def keep_loaded(modules: dict[str, types.ModuleType]) -> None:
    """At the end of a fork: leave its parent's modules out of Python's clearing of all modules.

    The clearing writes to nearly every page of the parent, which are copied, and takes longer than most programs.
    """
    for name, module in modules.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(modules))


for name in sys.argv[2:]:
    with suppress(ModuleNotFoundError):  # of a copy without extras; a program that needs it says so
        importlib.import_module(name)
if is_of_ranks := "collectives.job.supervisor_client" in sys.modules:
    from autograd.kernels import compiled

    compiled.load()  # Numba and its loops, which would take each rank with an optimizer half a second
loaded = {name: module for name, module in sys.modules.items() if name not in ("__main__", "builtins", "sys")}
atexit.register(keep_loaded, loaded)
gc.freeze()  # a collection in a fork would copy all pages of the parent
if program := forked_program(socket.socket(fileno=int(sys.argv[1])), 0):
    run(program)
