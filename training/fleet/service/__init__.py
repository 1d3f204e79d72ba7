"""The service: one plain method for each call, with its checks; it contains no HTTP and no SQL."""
