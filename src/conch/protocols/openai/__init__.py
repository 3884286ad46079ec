"""Messages of the OpenAI API and vLLM's extensions."""
