"""Engines that carry out tasks: processes of this machine, a Dask or Ray cluster, Slurm; all give equal results."""
