"""Inputs from files: perf_analyzer's JSON and folders, images, prompts, recordings."""
