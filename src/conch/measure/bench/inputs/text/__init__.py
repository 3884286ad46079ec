"""Inputs of language models: prompts of exact lengths, conversations, and requests of the OpenAI API."""
