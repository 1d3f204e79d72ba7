"""Renewal of a client's certificate before it expires, with a new key."""

from __future__ import annotations

from training.fleet.client.client import FleetClient
from training.fleet.client.credentials import Credentials, new_request


def renew_if_due(credentials: Credentials, client: FleetClient, now: float) -> bool:
    """Renew when two thirds of the certificate's life are over; returns True then.

    ``now`` is this machine's wall clock. Further connections show the new certificate once ``client`` and others close
    their idle ones. Raises ClientError, CredentialsError, OSError; the old one is good until its end.
    """
    known = credentials.identity()
    if known is None or not known.due(now):
        return False
    key, request = new_request(known.name)
    answer = client.call("renew", csr=request)
    credentials.store(answer, key, known.receiver_url, now)
    credentials.reload()
    return True
