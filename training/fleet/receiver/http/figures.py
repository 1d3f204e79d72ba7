"""The parts of a receiver that its figures for Prometheus are made of. Loaded at the first scrape."""

from __future__ import annotations

from pathlib import Path

from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.metrics.exposition import Exposition
from training.fleet.receiver.metrics.snapshot import Credential, Snapshots, Sources


def exposition(context: ReceiverContext) -> Exposition:
    """Return what writes this receiver's figures; the first call makes it."""
    if context.exposition is not None:
        return context.exposition
    path = getattr(context.reader, "path", ":memory:")
    sources = Sources(
        reader=context.reader,
        service=context.service,
        views=context.views,
        store=context.store,
        datasets=context.datasets,
        database=None if path == ":memory:" else Path(path),
        credentials=lambda: _credentials(context),
        clock=context.clock,
    )
    context.exposition = Exposition(Snapshots(sources, context.tally, context.last_event), context.settings.version)
    return context.exposition


def _credentials(context: ReceiverContext) -> tuple[list[Credential], list[Credential]]:
    """List the certificates and the tokens that are not revoked, the receiver's own certificate first."""
    registry = context.authenticator.registry
    own = None if context.authority is None else context.authority.server_expires_at()
    certificates = [] if own is None else [Credential("receiver", "receiver", own)]
    certificates += [
        Credential(each.role, each.name, each.expires_at) for each in registry.certificates() if each.revoked_at is None
    ]
    tokens = [Credential(each.role, each.name, each.expires_at) for each in registry.tokens() if not each.revoked_at]
    return certificates, tokens
