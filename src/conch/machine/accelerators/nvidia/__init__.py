"""NVIDIA GPUs: what NVML reads, the collector, and the views of its samples under DCGM's and Triton's names."""
