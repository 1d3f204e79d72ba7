"""Pure rules about jobs and hosts: which hosts fit a job, which hosts must wait, which are in quarantine, and the
schedule. Its functions take plain values and return decisions."""
