"""Values of the Services and of the NetworkPolicy."""
