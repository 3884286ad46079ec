"""The vocabulary: tensors, requests, configurations, metrics, language models, limits. Reads files, opens no socket."""
