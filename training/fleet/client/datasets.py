"""Calls about data sets and saved states: listings and chunks, each verified on arrival."""

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from training.fleet.client.answers import Damaged, decoded
from training.fleet.client.retry import Caller, address
from training.fleet.wire.constants import HEADER_CLAIM_ID, HEADER_HOST_ID
from training.fleet.wire.dataset_listing import BadListing, Listing, batch, parse
from training.fleet.wire.message import JsonObject

SLOW_S = 120.0  # seconds; a small board takes long to check a listing or to sync


class ChunkCalls:
    """The calls that transfer listings and their chunks, over a client's connections. ``tries`` bounds how often a call
    is sent; None: as the client says."""

    def __init__(self, caller: Caller, address: Callable[[str], str], headers: Mapping[str, str] | None = None) -> None:
        """``address`` returns the endpoint's address for a data set's or a state's id; ``headers`` are sent with each
        upload and download."""
        self._caller = caller
        self._at = address
        self._headers = dict(headers or {})

    def announce(self, listing: Listing, *, tries: int | None = None) -> JsonObject:
        """Announce a listing; the answer's ``missing`` names the chunks that the receiver lacks, only the first ones if
        there are many."""
        return self._put(self._at(listing.dataset_id), listing.document, tries)

    def bring(self, dataset_id: str, chunks: Sequence[tuple[str, bytes]], *, tries: int | None = None) -> None:
        """Upload chunks (SHA-256, bytes) of an announced listing, all of them in one request."""
        if len(chunks) > 1:
            self._put(f"{self._at(dataset_id)}/pieces", batch(chunks), tries, answers=False)
            return
        for sha256, data in chunks:
            self._put(self._chunk(dataset_id, sha256), data, tries, answers=False)

    def listing(self, dataset_id: str, *, tries: int | None = None) -> Listing:
        """Fetch the listing with this id; raises Damaged if its SHA-256 differs from the id, or it breaks a rule."""
        document = self._get(self._at(dataset_id), dataset_id, tries)
        try:
            return parse(document)
        except BadListing as error:
            raise Damaged(f"the receiver's listing {dataset_id[:12]} cannot be used: {error}") from error

    def piece(self, dataset_id: str, sha256: str, *, tries: int | None = None) -> bytes:
        """Fetch the bytes of a chunk; raises Damaged if their SHA-256 differs."""
        return self._get(self._chunk(dataset_id, sha256), sha256, tries)

    # -- inside -------------------------------------------------------------------------------------------------

    def _chunk(self, dataset_id: str, sha256: str) -> str:
        return f"{self._at(dataset_id)}/piece/{sha256}"

    def _get(self, path: str, sha256: str, tries: int | None) -> bytes:
        def once() -> bytes:
            body = self._caller.send("GET", path, headers=self._headers).body
            if hashlib.sha256(body).hexdigest() != sha256:
                raise Damaged(f"{path} arrived damaged ({len(body)} bytes)")
            return body

        return self._caller.again(once, tries)

    def _put(self, path: str, body: bytes, tries: int | None, *, answers: bool = True) -> JsonObject:
        headers = {"Content-Length": str(len(body)), "Content-Type": "application/octet-stream", **self._headers}

        def once() -> JsonObject:
            answer = self._caller.send("PUT", path, body=io.BytesIO(body), headers=headers, timeout_s=SLOW_S)
            return decoded(answer, dict) if answers else {}

        return self._caller.again(once, tries)


class DatasetCalls(ChunkCalls):
    """The calls about data sets; ``announce`` returns a ``DatasetDraftReply`` as a dict."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller, lambda dataset_id: address("dataset", dataset_id))

    def datasets(self) -> JsonObject:
        """List the data sets; return the ``DatasetsReply`` as a dict."""
        return self._call("datasets")

    def publish(self, dataset_id: str, name: str | None, hosts: Sequence[str] = ()) -> JsonObject:
        """Publish a data set; return the ``DatasetPublishReply`` as a dict. ``hosts``: the hosts that the data set was
        recorded on."""
        return self._call("publish_dataset", dataset_id, name=name, hosts=list(hosts))

    def remove(self, dataset_id: str) -> JsonObject:
        """Remove a data set; return the ``DatasetRemoveReply`` as a dict."""
        return self._call("remove_dataset", dataset_id)

    def unname(self, dataset_id: str, name: str) -> JsonObject:
        """Remove one of a data set's names; return its ``DatasetView`` as a dict."""
        return self._call("unname_dataset", dataset_id, name=name)

    def _call(self, name: str, /, *parts: str, **given: Any) -> JsonObject:
        return self._caller.call(name, *parts, **given).to_dict()  # type: ignore[no-any-return]


class StateCalls(ChunkCalls):
    """The calls about the saved state of a job on which this host holds a live claim."""

    def __init__(self, caller: Caller, job_id: str, claim_id: str, host_id: str | None) -> None:
        who = {HEADER_CLAIM_ID: claim_id, **({} if host_id is None else {HEADER_HOST_ID: host_id})}
        super().__init__(caller, lambda state_id: address("state", job_id, state_id), who)
        self._job_id = job_id

    def keep(self, state_id: str, *, tries: int | None = None, **members: Any) -> None:
        """Make an announced state, whose chunks were all uploaded, the job's newest saved state
        (``StateKeepRequest``)."""
        self._caller.call("keep_state", self._job_id, state_id, headers=self._headers, tries=tries, **members)
