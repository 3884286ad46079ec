"""The GPUs of the machine, metrics of its accelerators, and which pods and models use them."""
