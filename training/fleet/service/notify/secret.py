"""Read a channel's secret from the place that the manifest names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from training.fleet.manifest.channels import NotifyChannel, Secret

SECRET_BYTES_MAX = 4096


class SendError(Exception):
    """A message was not delivered; the text is one sentence with reason and remedy."""


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
            with Path(str(secret.file)).open("rb") as stream:
                raw = stream.read(SECRET_BYTES_MAX + 1)
            text = raw.decode()
        except OSError as error:
            raise SendError(
                f"{secret} cannot be read ({error.strerror}); the receiver's user must be able to"
            ) from None
        except UnicodeDecodeError:
            raise SendError(f"{secret} is no text; write one line into it") from None
        if len(raw) > SECRET_BYTES_MAX or not text.strip() or len(text.strip().splitlines()) > 1:
            raise SendError(f"{secret} must hold one line of at most {SECRET_BYTES_MAX} bytes")
    return text.strip()
