"""Checking a database and a store (doctor), and repairing them: backup, restore, rebuild."""
