"""A module that takes its process with it, as a library may that was not made for a fork."""

import os

os.abort()
