"""A module whose import does not end."""

import time

time.sleep(600)
