"""What MPI's launcher starts in the place of a rank: it passes what it was given to a fork, and ends as the fork does.

Usage: python -I -S rank.py SOCKET PROGRAM [ARGUMENT...]. `parent.py` documents the message.
"""

import marshal
import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOL_SOCKET, socket  # `socket` takes as long to import as the rest
from array import array

files = array("i", [0, 1, 2])
if number := os.environ.get("PMI_FD"):
    files.append(int(number))
connection = socket(AF_UNIX)
connection.connect(sys.argv[1])
data = marshal.dumps((None, sys.argv[2:], dict(os.environb.items()), os.getcwd()))
connection.sendmsg([len(data).to_bytes(4, "little")], [(SOL_SOCKET, SCM_RIGHTS, files)])
connection.sendall(data)
answer = connection.recv(4)
status = os.waitstatus_to_exitcode(int.from_bytes(answer, "little")) if answer else 1
if status < 0:
    os.kill(os.getpid(), -status)
os._exit(status)
