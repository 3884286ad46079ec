"""What a machine computes with: which GPUs there are, and which of them this server may use."""
