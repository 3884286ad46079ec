"""Language models through vLLM."""
