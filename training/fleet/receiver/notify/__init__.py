"""The ways in which a notice leaves the receiver: webhook, ntfy, e-mail, a command."""
