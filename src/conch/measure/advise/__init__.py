"""Recommend an engine or backend, a layout, GPUs and instances for models, by rules over facts, with reasons."""
