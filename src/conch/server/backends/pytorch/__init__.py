"""PyTorch models: TorchScript, exported programs, compiled packages, code."""
