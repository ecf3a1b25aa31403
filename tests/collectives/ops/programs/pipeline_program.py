"""All pipelines of `pipeline_cases` over MPI; prints the number of faults of all ranks."""

import numpy

import collectives as cc
from tests.collectives.ops.pipeline_cases import faults

for nonblocking in (False, True):
    wrong = faults(nonblocking)
    count = cc.world().all_reduce(numpy.array([len(wrong)]))
    cc.in_order("\n".join(wrong))
    if cc.world().index == 0:
        print(f"PIPELINES {'nonblocking' if nonblocking else 'blocking'}: {int(count[0])} faults", flush=True)
