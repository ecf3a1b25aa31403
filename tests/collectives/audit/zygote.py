"""Starts ranks of jobs by forking a process that has imported torch, which takes seconds; reads a request a line.

A request is JSON: "ranks", "environment", "program", "arguments". The answer is the list of exit statuses.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import sys
import threading
from typing import Any

import torch
import torch._dynamo  # which the first optimizer of a process would load
import torch.distributed.fsdp
import torch.distributed.nn.functional
import torch.distributed.tensor.parallel


def rank(i: int, port: int, request: dict[str, Any]) -> None:
    """Be a rank."""
    os.environ.update(request["environment"])
    os.environ.update(RANK=str(i), LOCAL_RANK=str(i), WORLD_SIZE=str(request["ranks"]), MASTER_ADDR="localhost",
                      MASTER_PORT=str(port))  # fmt: skip
    torch.set_num_threads(1)
    runpy.run_path(request["collector"])["collect"](os.environ["RINGTAPE_AUDIT"])
    sys.argv[:] = [request["program"], *request["arguments"]]
    runpy.run_path(request["program"], run_name="__main__")


def main() -> None:
    """Answer requests until the input ends."""
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        children = []
        for i in range(request["ranks"]):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    os.dup2(2, 1)
                    rank(i, port, request)
                    status = 0
                except BaseException:
                    sys.excepthook(*sys.exc_info())
                finally:
                    for thread in threading.enumerate():  # as Python's end does
                        if not thread.daemon and thread is not threading.current_thread():
                            thread.join()
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        statuses = []
        while children:
            ended, status = os.wait()
            children.remove(ended)
            statuses.append(status)
            if status:  # the others may wait for it
                for child in children:
                    os.kill(child, signal.SIGKILL)
        print(json.dumps(statuses), flush=True)


if __name__ == "__main__":
    main()
