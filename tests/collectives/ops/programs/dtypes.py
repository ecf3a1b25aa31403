"""Every collective on arrays of every dtype, over MPI."""

import sys

import collectives as cc
from tests.collectives.ops.dtype_cases import mistakes

count, wrong = mistakes()
print(f"rank {cc.world().index}: {count} cases, {len(wrong)} wrong")
print("\n".join(wrong[:20]))
sys.exit(1 if wrong else 0)
