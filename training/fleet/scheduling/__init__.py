"""Pure rules: jobs and their states, who fits, who waits, who is quarantined. Values in, decisions out."""
