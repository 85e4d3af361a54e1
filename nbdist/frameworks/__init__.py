"""Other frameworks in a body: what a task provides for the distribution of PyTorch and JAX themselves."""
