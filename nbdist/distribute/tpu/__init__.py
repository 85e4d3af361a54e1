"""Training on the devices of JAX: one process, one program that XLA partitions over a mesh of TPUs."""
