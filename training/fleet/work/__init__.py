"""What a worker does: the phases of its state machine, and the hands that carry them out."""
