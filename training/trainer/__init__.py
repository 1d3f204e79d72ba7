"""Train models and use them: each program trains, scores, compares or adapts models, or reports how hosts changed."""
