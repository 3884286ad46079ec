"""`conch gpu-exporter`: metrics of accelerators over HTTP."""
