"""One plain method per call, with its guards: no HTTP, no SQL."""
