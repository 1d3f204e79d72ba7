"""Data sets in pieces: what they are, where the receiver keeps them, how they travel."""
