"""Language models independent of the engine: chat templates, tool calls, tensor forms, and planning of GPUs."""
