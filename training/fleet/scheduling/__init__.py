"""Pure rules: jobs and their states, which hosts fit a job, which hosts must wait, which are quarantined. Its functions
take plain values and return decisions."""
