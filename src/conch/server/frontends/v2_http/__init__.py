"""The KServe v2 protocol and Triton's extensions over HTTP."""
