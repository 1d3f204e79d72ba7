"""Train models and use them: programs that train, score, compare or adapt models, report how hosts changed, or make a
report's page."""
