"""Policies of scaling: a module for each kind of object, over one loop."""
