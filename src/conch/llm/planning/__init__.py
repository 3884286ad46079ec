"""Which GPUs a language model fits, before one is bought, booked or loaded: arithmetic on what its checkpoint says."""
