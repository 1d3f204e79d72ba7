"""Check a database and a store (doctor), and repair them: backup, restore, rebuild."""
