"""Graphs as functions of jax.numpy, which XLA compiles for TPUs, GPUs and CPUs."""
