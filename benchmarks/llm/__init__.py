"""Language models: Conch beside the raw engine and vLLM, `python -m benchmarks.llm`."""
