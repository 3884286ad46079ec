"""The container image: its Dockerfile, and what podman builds and runs from it."""
