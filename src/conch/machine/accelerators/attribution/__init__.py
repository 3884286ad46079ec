"""Which pods and models use an accelerator."""
