"""Training steps that people run, each as it is written for its engine; see `benchmarks/captured.py`.

=================  ==========================================================================================
module             contents
=================  ==========================================================================================
problems           initial parameters and batches of each program, in NumPy: the same for all engines
ringtape_steps     the programs in ringtape: `step(name)`, which is a step as it is, and may be captured
jax_steps          the programs in JAX, each step compiled by one `jax.jit`
torch_steps        the programs in PyTorch, eager
numpy_steps        the small ones in NumPy, with derivatives by hand
worker             one program of one engine in its own process, which takes turns with the others
=================  ==========================================================================================
"""
