"""Batches of the OpenAI API: files, their endpoints, and the runner that works in idle time."""
