"""Keep the pages' templates compiled: ``python -m training.fleet.pages``, at each installation."""

from training.fleet.pages.rendering import keep_compiled

if __name__ == "__main__":
    keep_compiled()
