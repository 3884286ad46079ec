"""`conch tune`: choose the configuration of a model by measuring."""
