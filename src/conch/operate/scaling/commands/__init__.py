"""`conch autoscale`: simulations of autoscalers."""
