"""The HTTP layer: decode a request, call the service, encode the answer; also bodies, connections, uploads."""
