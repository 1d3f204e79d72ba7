"""Files that must survive: the store's parts, its index, locks, and the file system as a seam."""
