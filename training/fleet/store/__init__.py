"""Bundles and data sets on the receiver's disk, named by their content."""
