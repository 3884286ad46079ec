"""Collectors that read a vendor's command line tool; one module a vendor, parsers are pure."""
