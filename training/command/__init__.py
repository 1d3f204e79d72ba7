"""``cis490``: the one command, whose verbs start all programs of this project."""
