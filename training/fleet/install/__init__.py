"""Install the receiver or a worker as a service: check the machine, then do one step after another, on Linux or
Windows."""
