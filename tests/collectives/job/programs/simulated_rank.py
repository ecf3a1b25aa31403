"""A process that connects to a supervisor as a rank does. It sends what it is told on stdin, and prints the replies.

simulated_rank.py NAME
    life LINE      send a line on both connections that show the rank's death, and print the byte that answers each
    status LINE    send a line on the connection for the status
    raw HEX        send bytes there
    exit           close one of the first two connections, as a process does that a library ends
    leave          close all connections, as exec does
    _exit STATUS   leave by os._exit
    fork           fork a child that keeps the connections open; print its process id
"""

from __future__ import annotations

import os
import socket
import sys
import time

name = "\0" + sys.argv[1]
connections = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
for each in connections:
    each.connect(name)
    each.settimeout(20.0)
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "life":
        replies = ""
        for each in connections[:2]:
            each.sendall(f"{rest}\n".encode())
            replies += each.recv(1).decode()
        print(replies, flush=True)
    elif word in ("status", "raw"):
        connections[2].sendall(bytes.fromhex(rest) if word == "raw" else f"{rest}\n".encode())
        print("sent", flush=True)
    elif word == "exit":
        connections[1].close()
        print("exits", flush=True)
    elif word == "leave":
        for each in connections:
            each.close()
        print("left", flush=True)
    elif word == "_exit":
        print("leaves", flush=True)
        os._exit(int(rest))
    elif word == "fork":
        child = os.fork()
        if child == 0:
            time.sleep(60.0)
            os._exit(0)
        print(child, flush=True)
