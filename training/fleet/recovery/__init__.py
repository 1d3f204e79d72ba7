"""Check a receiver's database and store (doctor), back them up, and restore or rebuild them."""
