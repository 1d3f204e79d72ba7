"""Watch this host with a trained model: take samples, and report incidents and changes."""
