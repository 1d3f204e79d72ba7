"""Doubts about data: what may mean otherwise than it says is noted, and refused where it surely does."""
