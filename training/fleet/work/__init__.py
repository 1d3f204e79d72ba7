"""The worker: the phases of its state machine, and what carries them out."""
