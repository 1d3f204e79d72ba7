"""The receiver's HTTP side: addresses, bodies, uploads, connections, and what they share."""
