"""GPU discovery: the GPUs of the machine, and those that this server may use."""
