"""The core: model lookup, scheduling and the life of models, between decoded requests and instances."""
