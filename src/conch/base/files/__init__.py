"""Files that are replaced as a whole, and paths confined to a folder."""
