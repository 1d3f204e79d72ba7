"""Install the receiver or a worker as a service: checks, steps, and what differs between systems."""
