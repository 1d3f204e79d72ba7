"""The only package that owns trainers' processes: start them, watch them, end them."""
