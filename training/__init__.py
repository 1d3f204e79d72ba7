"""The CIS490 training fleet: coordination (fleet), telemetry (data) and models (trainer)."""
