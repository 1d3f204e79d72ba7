"""Join the parts of a receiver from which its Prometheus metrics are computed. The module is loaded at the first
scrape."""

from pathlib import Path

from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.metrics.exposition import Exposition
from training.fleet.receiver.metrics.snapshot import Credential, Snapshots


def exposition(context: ReceiverContext) -> Exposition:
    """Return the object that writes this receiver's metrics; the first call makes this object."""
    if context.exposition is not None:
        return context.exposition
    snapshots = Snapshots(
        context.reader,
        context.service,
        context.views,
        context.store,
        context.datasets,
        Path(context.reader.path),
        lambda: _credentials(context),
        context.clock,
        context.tally,
        context.last_event,
    )
    context.exposition = Exposition(snapshots, context.settings.version)
    return context.exposition


def _credentials(context: ReceiverContext) -> tuple[list[Credential], list[Credential]]:
    """List the certificates and the tokens that are not revoked, the receiver's own certificate first."""
    registry = context.registry
    own = None if context.authority is None else context.authority.server_expires_at()
    certificates = [] if own is None else [Credential("receiver", "receiver", own)]
    certificates += [
        Credential(each.role, each.name, each.expires_at) for each in registry.certificates() if each.revoked_at is None
    ]
    tokens = [Credential(each.role, each.name, each.expires_at) for each in registry.tokens() if not each.revoked_at]
    return certificates, tokens
