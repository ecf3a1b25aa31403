"""A process group in which this process is one rank of several, and each collective leaves it its own values.

So a run of a data-parallel program on one process computes what a rank computes of its own rows, before any sum.
"""

from __future__ import annotations

from functools import partial
from typing import Any

_NAME = "audit-one-rank"


def install(collector: Any) -> None:
    """Give a program that asks for a process group this one."""
    collector.wrap(collector.torch.distributed, "init_process_group", partial(start, collector.options["data"]))


def start(data: Any, init_process_group: Any, *args: Any, **kwargs: Any) -> Any:
    """Make the default group of a program, in which it is one rank of several."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _create_work_from_future

    rank, size = data

    def done(result: Any) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(result)
        return _create_work_from_future(future)

    class OneRank(dist.ProcessGroup):
        """Collectives that move nothing."""

        def getBackendName(self) -> str:
            return _NAME

        def allreduce(self, tensors: Any, options: Any = None) -> Any:
            return done(tensors)

        allreduce_coalesced = broadcast = reduce = allreduce

        def allgather(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
            for output, x in zip(outputs, inputs, strict=True):
                for each in output:
                    each.copy_(x)
            return done(outputs)

        def gather(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
            return self.allgather(outputs, inputs) if outputs and outputs[0] else done(inputs)

        def _allgather_base(self, output: Any, x: Any, options: Any = None) -> Any:
            output.view(size, -1).copy_(x.reshape(1, -1))
            return done([output])

        def reduce_scatter(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
            for output, xs in zip(outputs, inputs, strict=True):
                output.copy_(xs[rank])
            return done(outputs)

        def _reduce_scatter_base(self, output: Any, x: Any, options: Any = None) -> Any:
            output.copy_(x.reshape(size, *output.shape)[rank])
            return done([output])

        def scatter(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
            if inputs:
                outputs[0].copy_(inputs[0][rank])
            return done(outputs)

        def barrier(self, options: Any = None) -> Any:
            return done([torch.zeros(())])

    dist.Backend.register_backend(_NAME, lambda _, rank, size, limit: OneRank(rank, size), devices=["cpu", "cuda"])
    return init_process_group(_NAME, store=dist.HashStore(), rank=rank, world_size=size)
