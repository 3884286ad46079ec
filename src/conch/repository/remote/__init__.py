"""Model repositories that are not on this machine: object stores, archives behind HTTP, images in OCI registries.

A `Mirror` looks at one of them and makes local folders of its models; what was fetched once stays in a cache.
"""
