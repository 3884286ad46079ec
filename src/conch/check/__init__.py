"""`conch check`: find errors in a model repository without starting a server. One package for each family of rules."""
