"""Language models through TensorRT-LLM."""
