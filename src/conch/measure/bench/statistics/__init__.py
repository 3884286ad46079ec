"""What measurements say: percentiles with intervals, steady state, stopping rule, comparison, diagnosis, saturation."""
