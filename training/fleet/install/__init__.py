"""Making a service of the receiver or a worker: checks, steps, and the differences of systems."""
