"""When an open loop sends its requests: constant, Poisson and gamma arrivals at rates that may change over time."""
