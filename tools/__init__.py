"""Programs for development, which `make` runs: they write generated files of the repository and run its tests."""
