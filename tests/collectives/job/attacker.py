"""Attacks on the supervisor of a job, by another user of the host or from another host. None may have an effect.

An attack gets the name of the supervisor's socket and the process ids of its victims, which other users can both read
in /proc. It returns what it has achieved: "" if nothing. It runs as the user ``nobody``; see `run`.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import re
import resource
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable

__all__ = ["ATTACKS", "NOBODY", "run"]

NOBODY = 65534
_WAIT_S = 5.0

Attack = Callable[[str, list[int]], str]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__] = function
    return function


def run(name: str, victims: list[int], chosen: list[str] | None = None) -> dict[str, str]:
    """Run attacks as ``nobody`` in a child process. Returns what each has achieved."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            found = {}
            for each in chosen or ATTACKS:
                try:
                    found[each] = ATTACKS[each](name, victims)
                except (ConnectionError, PermissionError, TimeoutError) as error:
                    found[each] = "" if not isinstance(error, TimeoutError) else "kept waiting"
            os.write(writing, json.dumps(found).encode())
        except BaseException:
            os.write(writing, json.dumps({"attacker": traceback.format_exc()}).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        text = file.read()
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"the attacker ended with status {status}"
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def connected(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Python's own time limit would make connect fail at once where the queue of the listener is full for a moment.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 10 * int(_WAIT_S + 1), 0))
    connection.connect(f"\0{name}")
    connection.settimeout(_WAIT_S)
    return connection


def say(name: str, data: bytes) -> str:
    """Send data; returns the reply."""
    with connected(name) as connection:
        connection.sendall(data)
        reply = connection.recv(100)
        return f"was answered {reply!r}" if reply else ""


def says(name: str, data: bytes) -> None:
    def one(socket_name: str, victims: list[int]) -> str:
        return say(socket_name, data.replace(b"PID", str(victims[0]).encode()))

    one.__name__ = name
    attack(one)


says("garbage", bytes(range(256)) * 100 + b"\n")
says("an invalid text", b"doing \xff\xfe\xc0\n")
says("malformed numbers", b"hello x y z\n")
says("numbers that are too large", b"hello " + b"9" * 5000 + b" 1 0\n")
says("negative numbers", b"hello -1 -1 -1\n")
says("a forged rank", b"hello 0 2 0\n" * 2)
says("a forged process id", b"hello 1 3 PID 3\n")
says("the process id of all processes", b"hello 1 3 -1 3\nhello 1 3 -1\n")
says("the end of the job", b"hello 0 2 0\nending\n")
says("a claim", b"link \nclaim\nending\n")
says("a rank that leaves", b"hello 0 2 0\ndone\n")
says("hosts that do not exist", b"hosts 1 1 0\n")
says("escape codes", b"talk\ndoing \x1b]0;owned\x07\x1b[2J\n")
says("a listener for other hosts", b"open\n")
says("a join of another host", b"join 127.0.0.1 80 secret\n")


@attack
def an_endless_line(name: str, victims: list[int]) -> str:
    sent, end = 0, time.monotonic() + 1.0
    with contextlib.suppress(OSError), connected(name) as connection:
        while time.monotonic() < end:
            sent += connection.send(bytes(1 << 20))
    return f"{sent} bytes were taken" if sent > 1 << 22 else ""


@attack
def half_a_message(name: str, victims: list[int]) -> str:
    held = []
    for _ in range(100):
        with contextlib.suppress(OSError):
            held.append(connected(name))
            held[-1].send(b"hello 1")
    open_still = 0
    for each in held:
        with contextlib.suppress(OSError):
            open_still += each.recv(1) != b""
        each.close()
    return f"{open_still} connections are kept" if open_still else ""


@attack
def ten_thousand_connections(name: str, victims: list[int]) -> str:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 12_000), most))
    held = []
    for _ in range(10_000):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.connect(f"\0{name}")
        try:
            held.append(connection)
        except OSError:
            break
    for connection in held:
        connection.close()
    return ""


@attack
def descriptors(name: str, victims: list[int]) -> str:
    with connected(name) as connection:
        numbers = array.array("i", [0, 1, 2] * 20).tobytes()
        connection.sendmsg([b"hello 0 2 0\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
        return "was answered" if connection.recv(1) else ""


@attack
def forged_credentials(name: str, victims: list[int]) -> str:
    with connected(name) as connection:
        mine = struct.pack("3i", victims[0], 0, 0)
        connection.sendmsg([b"hello 0 2 0\n"], [(socket.SOL_SOCKET, 2, mine)])  # SCM_CREDENTIALS
        return "was answered" if connection.recv(1) else ""


@attack
def a_name_taken_first(name: str, victims: list[int]) -> str:
    """The name of the running job, and what could be guessed about names of jobs of this launcher."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0{name}")
    except OSError:
        return ""
    listener.listen()
    listener.settimeout(0.5)
    try:
        connection, _ = listener.accept()
        return f"reads along: {connection.recv(100)!r}"
    except TimeoutError:
        return ""


@attack
def signals(name: str, victims: list[int]) -> str:
    done = []
    for victim in victims:
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
            with contextlib.suppress(PermissionError):
                os.kill(victim, number)
                done.append(victim)
    return f"sent signals to {done}" if done else ""


@attack
def reading_the_processes(name: str, victims: list[int]) -> str:
    done = []
    for victim in victims:
        for what in ("environ", "auxv", "mem", "maps"):
            with contextlib.suppress(PermissionError, OSError):
                with open(f"/proc/{victim}/{what}", "rb") as file:
                    if file.read(1):
                        done.append(f"{what} of {victim}")
    return f"reads {done}" if done else ""


@attack
def reading_shared_memory(name: str, victims: list[int]) -> str:
    done = []
    for each in os.listdir("/dev/shm"):
        if re.search("mpich|ompi|vader|sm_segment|ringtape", each):
            with contextlib.suppress(OSError), open(f"/dev/shm/{each}", "rb"):
                done.append(each)
    return f"reads {done}" if done else ""


@attack
def taking_its_descriptors(name: str, victims: list[int]) -> str:
    done = []
    for victim in victims:
        with contextlib.suppress(PermissionError, OSError):
            done += os.listdir(f"/proc/{victim}/fd")
    return f"sees {done}" if done else ""
