"""Values of the pods: image, flags, models, devices, secrets, volumes, and the workload that runs them."""
