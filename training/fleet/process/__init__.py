"""The only package that handles trainers' processes: it starts, watches and ends them."""
