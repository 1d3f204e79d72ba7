"""HTTP: decode, call, encode; bodies, connections, uploads."""
