"""Load on the fleet, by the official client of Triton in a child process."""
