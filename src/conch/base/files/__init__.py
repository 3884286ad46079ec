"""Files that are replaced as a whole, paths confined to a folder, and tables of the package."""
