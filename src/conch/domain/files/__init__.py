"""Readers of model files without a framework: inputs and outputs, sizes, metadata."""
