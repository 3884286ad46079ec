"""How good `conch tune` finds: `python -m benchmarks.tuning`, and its searches on recorded grids."""
