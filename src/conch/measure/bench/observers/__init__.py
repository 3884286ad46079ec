"""What is observed beside the load: the server's metrics, its processes, its GPUs."""
