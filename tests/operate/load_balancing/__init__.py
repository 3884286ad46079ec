"""Load balancers in front of real servers, and the configurations that the project ships."""
