"""Conch: an inference server that reads a Triton model repository and speaks Triton's protocols."""

__version__ = "0.1.0"
