"""Send notices from the receiver by webhook, ntfy, e-mail or a command."""
