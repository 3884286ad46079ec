"""Which model, when, with whom: everything between a decoded request and an instance."""
