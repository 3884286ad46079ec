"""Models that run in a Python model's process without a model.py: PyTorch code, pooling."""
