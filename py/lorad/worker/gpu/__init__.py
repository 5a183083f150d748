"""The worker for NVIDIA GPUs: Triton kernels, CUDA graphs, adapters copied in beside the steps ([docs/gpu.md])."""
