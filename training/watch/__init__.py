"""Watching this very host with a trained model: samples in, incidents out."""
