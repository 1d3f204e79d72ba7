"""Keep a worker's certificate valid: renew it in time, and notice a revocation soon.

The check of the certificate runs on one thread, separate from the worker's loop. A receiver without a proxy closes the
checking thread's idle connection when it revokes the certificate; the thread's next request then gets the reason. While
the connection stays open, the thread sends one small request a minute, or more often if the receiver's last answer asks
for that. A receiver behind a proxy asks for a request every few seconds, because there the connection stays open after
a revocation, too.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from training.clock import Clock
from training.fleet.client.client import ClientError, FleetClient, Refused
from training.fleet.client.credentials import Credentials, CredentialsError, renew_if_due
from training.fleet.client.transport import HttpTransport
from training.fleet.wire.constants import LOOK_AGAIN_S, ProblemType
from training.logs import HOURLY

log = logging.getLogger(__name__)

PAUSE_S = 2.0  # between two looks, however often the connection is cut
RETRY_S = 10.0
RENEW_AGAIN_S = 600.0  # after a failed renewal; there are ten days for it


@dataclass
class CertificateKeeper:
    """Keeps one worker's credentials valid. ``on_revoked`` is called once with the receiver's sentence when the
    certificate is revoked.

    ``granted_by`` returns the database that granted the current work, if any: then only a receiver with that database
    can revoke this worker.
    """

    credentials: Credentials
    receiver_url: str
    clock: Clock
    on_renewed: Callable[[], None]
    on_revoked: Callable[[str], None]
    granted_by: Callable[[], str | None] = lambda: None
    _quiet_s: float = LOOK_AGAIN_S
    _renew_at: float = 0.0  # by the monotonic clock

    def __post_init__(self) -> None:
        self._transport = http = HttpTransport(self.receiver_url, tls=self.credentials.context())
        self._client = FleetClient(self.receiver_url, transport=http, tries=1, timeout_s=10.0, one_database=False)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="standing", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close the idle connection, and make the thread end when it notices."""
        self._end.set()
        self.close()

    def close(self) -> None:
        """Close the thread's idle connection to the receiver."""
        self._transport.close()

    def look(self) -> bool:
        """Renew the certificate if due, and ask the receiver whether the certificate is revoked. Return False if it is
        revoked, else True. Raises ClientError if the receiver is not reached or cannot answer now."""
        try:
            self._renew()
            wanted_s = self._asked().health().get("look_again_s") or LOOK_AGAIN_S
            self._quiet_s = min(max(wanted_s, PAUSE_S), LOOK_AGAIN_S)
        except Refused as refusal:
            if refusal.problem_type == ProblemType.CERTIFICATE_REVOKED:
                self.on_revoked(str(refusal))
                return False
            log.warning("the receiver refuses this host: %s", refusal, extra=HOURLY)
        return True

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                if not self.look():
                    break
                pause_s = PAUSE_S if self._transport.wait_for_hangup(self._quiet_s) else 0.0
            except ClientError as error:  # the loop's own requests report it
                log.debug("no look at the certificate: %s", error)
                pause_s = RETRY_S
            self._end.wait(pause_s)
        self.close()

    def _asked(self) -> FleetClient:
        return self._client.about(self.granted_by())

    def _renew(self) -> None:
        now = self.clock.monotonic()
        if now < self._renew_at:
            return
        try:
            renewed = renew_if_due(self.credentials, self._asked(), self.clock.now())
        except (ClientError, CredentialsError, OSError) as error:
            if isinstance(error, Refused) and error.problem_type == ProblemType.CERTIFICATE_REVOKED:
                raise
            self._renew_at = now + RENEW_AGAIN_S
            log.warning("the certificate, two thirds of its life old, is not renewed yet: %s", error)
            return
        if renewed:
            self._transport.close()
            self.on_renewed()
            log.info("the certificate was renewed")
