"""Collectors of each vendor: NVML for NVIDIA, command line tools for the others. Parsers are pure."""
