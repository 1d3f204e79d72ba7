"""Watch this host with a trained model: take samples, report incidents."""
