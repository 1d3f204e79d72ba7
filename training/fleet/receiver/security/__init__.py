"""Authentication, access, certificates and rate limits of the receiver."""
