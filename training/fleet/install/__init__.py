"""Making a service of the receiver or a worker: checks, steps, and what systems differ in."""
