"""The OpenAI API, and vLLM's extensions of it."""
