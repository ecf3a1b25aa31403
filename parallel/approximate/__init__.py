"""Methods that change the numbers: approximate sums of gradients, and ranks that do not wait for each other.

====================  ==============================================================================================
`compression`         `Compression`, the base class of the methods that send less; the bytes of each method
`quantised`           `Float16`, `Int8`, `OneBit`: every element with few bits
`sparse`              `TopK`, `RandomK`: some of the elements
`low_rank`            `PowerSGD`: each matrix as the product of two thin ones
`error_feedback`      the state of a compression: what one step left out, for the next one
`compressed_adam`     `CompressedAdam`, the optimizer of 1-bit Adam
`local_sgd`           `LocalSGD`, `DiLoCo`: copies of the parameters that are averaged every few steps
`parameter_server`    `ParameterServer`: asynchronous training and bounded staleness
`backup_workers`      `BackupWorkers`: a step uses the gradients of the first k of n ranks
`own_copies`          the labels of the copies of the last three
`noise_scale`         `NoiseScale`: an estimator of the gradient noise scale, from the sums of the buckets
`rank_states`         the state of all ranks in a checkpoint
====================  ==============================================================================================

`parallel.data` is exact. It imports nothing from here: a method is given to it as a `Reduction`.
"""
