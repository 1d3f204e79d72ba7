"""The trainers: commands that learn one model from one data set and report on it honestly."""
