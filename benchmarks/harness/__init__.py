"""What the benchmarks share: servers to measure, their models, requests, load and figures."""
