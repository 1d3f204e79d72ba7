"""Earlier addresses only."""
