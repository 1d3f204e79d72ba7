"""Read a channel's secret from the place that the manifest names."""

import os
from collections.abc import Mapping
from pathlib import Path

from training.files import only_line_of
from training.fleet.manifest.channels import NotifyChannel, Secret


class SendError(Exception):
    """A message cannot be sent, or was not delivered; the text is one sentence with reason and remedy."""


def unreadable(channel: NotifyChannel) -> str | None:
    """Say why a channel cannot send; None if all its secrets can be read."""
    try:
        for secret in channel.secrets:
            read_secret(secret)
    except SendError as error:
        return str(error)
    return None


def read_secret(secret: Secret, environment: Mapping[str, str] = os.environ) -> str:
    """Read a secret: the one line of its file, or its variable. Raises SendError."""
    if secret.env is not None:
        text = environment.get(secret.env, "")
        if not text.strip():
            raise SendError(f"{secret} is not set in the receiver's environment; set it and restart the receiver")
    else:
        try:
            return only_line_of(Path(str(secret.file)))
        except ValueError as error:
            raise SendError(str(error)) from None
    return text.strip()
