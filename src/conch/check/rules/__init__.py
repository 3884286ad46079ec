"""The table of rules, one module for each family."""
