"""A job of JAX for the audit: the gradient that each device has in `shard_map`, written by `collectives.audit.write`.

    python with_jax.py ref 1 && python with_jax.py job 2
    python -m collectives audit judge job --against ref

The devices share the rows, and the gradient is a sum over them. `--wrong` forgets the sum for the bias: with
`check_vma=False` nothing tells that the copies differ.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import collectives.audit as audit

FOLDER, SIZE, IS_WRONG = sys.argv[1], int(sys.argv[2]), "--wrong" in sys.argv
jax.config.update("jax_num_cpu_devices", SIZE)
jax.config.update("jax_enable_x64", True)
mesh = Mesh(np.array(jax.devices()[:SIZE]), ("dp",))
rows, every = PartitionSpec("dp"), PartitionSpec()


def loss_of(w, x, y):
    return ((jnp.tanh(x @ w["first"]["kernel"] + w["first"]["bias"]) @ w["last"]["kernel"] - y) ** 2).sum() / 12


def gradient(w, x, y):
    """Of one device's rows, summed; with a leading axis of devices, since wrong copies differ."""
    loss, g = jax.value_and_grad(loss_of)(w, x, y)
    bias = g["first"]["bias"]
    g = jax.lax.psum(g, "dp")
    if IS_WRONG:
        g["first"]["bias"] = bias
    return loss[None], jax.tree.map(lambda x: x[None], g)


step_of = jax.jit(jax.shard_map(gradient, mesh=mesh, in_specs=(every, rows, rows), out_specs=rows, check_vma=False))
random = np.random.default_rng(0)
shapes = {"first": {"kernel": (6, 8), "bias": (8,)}, "last": {"kernel": (8, 4)}}
w = jax.tree.map(lambda shape: random.standard_normal(shape) / 2, shapes, is_leaf=lambda x: isinstance(x, tuple))


def named(tree, rank=None):
    """The leaves by their paths, of one device where each has its own."""
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(x if rank is None else x[rank])
            for path, x in jax.tree_util.tree_leaves_with_path(tree)}  # fmt: skip


for step in range(3):
    losses, g = step_of(w, random.standard_normal((12, 6)), random.standard_normal((12, 4)))
    for rank in range(SIZE):
        mine = named(g, rank)
        updates = {name: -0.1 * x for name, x in mine.items()}
        audit.write(FOLDER, rank, SIZE, step, mine, named(w), updates, loss=float(losses[rank]))
    w = jax.tree.map(lambda x, each: np.asarray(x - 0.1 * each[0]), w, g)
