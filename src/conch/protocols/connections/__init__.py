"""What all listeners share: budgets of memory and time, traffic, descriptors."""
