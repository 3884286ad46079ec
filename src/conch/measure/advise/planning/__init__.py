"""Estimate which GPUs a language model fits, from the sizes in its checkpoint, without loading it."""
