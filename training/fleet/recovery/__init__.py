"""Looking for what is wrong with a database and a store, and ways back: backup, restore, rebuild."""
