"""Engines that carry work out: processes of this machine, a Dask or Ray cluster, Slurm. Same results on each."""
