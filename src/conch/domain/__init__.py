"""The vocabulary: tensors, requests, configurations, metrics, language models, limits. No I/O but model files."""
