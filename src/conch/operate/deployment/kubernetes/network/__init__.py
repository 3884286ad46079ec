"""The Services, and the NetworkPolicy."""
