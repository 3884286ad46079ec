"""Remote model repositories: object stores, archives behind HTTP, images in OCI registries.

A `Mirror` scans one of them and creates local folders for its models; fetched files stay in a cache.
"""
