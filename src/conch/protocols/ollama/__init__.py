"""Messages of Ollama's API."""
