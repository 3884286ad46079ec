"""The engine's side: drivers of engines, one module each, and what they share."""
