"""The HTTP layer: it decodes requests, calls the service and encodes answers; it also limits bodies and connections."""
