"""Computes until it is killed."""

while True:
    sum(range(1000))
