"""The worker on a GPU: the same plan, computed by the kernels of `lorad.kernels`."""
