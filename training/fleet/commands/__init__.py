"""The commands of cis490-jobs and how their answers are shown."""
