"""Models in Python for their author: serve a script's models, call them in tests, and create new ones."""
