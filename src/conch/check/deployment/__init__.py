"""Checks of files beside a repository: scripts, images, charts."""
