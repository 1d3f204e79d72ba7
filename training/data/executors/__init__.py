"""Engines that carry out tasks: processes on this machine, a Dask or Ray cluster, or Slurm; all give equal results."""
