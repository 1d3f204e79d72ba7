"""Calls about data sets: listings and chunks, each verified on arrival."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from training import strict_json
from training.fleet.client.answers import Damaged, Refused, json_object
from training.fleet.client.retry import Caller
from training.fleet.wire.constants import ProblemType
from training.fleet.wire.dataset_listing import BadListing, Listing, batch, parse

SLOW_S = 120.0  # seconds; a small board takes long to check a listing or to sync


class DatasetCalls:
    """The calls about data sets, over a client's connections. ``tries`` as for the client's own."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._takes_many = True

    def datasets(self) -> dict[str, Any]:
        """List the datasets (``DatasetsReply``)."""
        return json_object(self._caller.again(lambda: self._caller.send("GET", "/v1/datasets"), None))

    def announce(self, listing: Listing, *, tries: int | None = None) -> dict[str, Any]:
        """Announce a data set by its listing (``DatasetDraftReply``)."""
        return self._put(_set(listing.dataset_id), listing.document, tries)

    def bring(self, dataset_id: str, chunks: Sequence[tuple[str, bytes]], *, tries: int | None = None) -> None:
        """Upload chunks (SHA-256, bytes) of an announced data set; several in one request."""
        if len(chunks) > 1 and self._takes_many:
            try:
                self._put(f"{_set(dataset_id)}/pieces", batch(chunks), tries, answers=False)
            except Refused as refusal:
                if refusal.problem_type != ProblemType.NOT_FOUND:
                    raise
                self._takes_many = False  # an older receiver has no such endpoint
            else:
                return
        for sha256, data in chunks:
            self._put(_chunk(dataset_id, sha256), data, tries, answers=False)

    def chunks(self, dataset_id: str, path: str, *, tries: int | None = None) -> list[tuple[str, int]]:
        """Get the content-defined chunks (SHA-256, bytes) of a published file; none from an older receiver."""
        query = f"{_set(dataset_id)}/chunks?path={quote(path)}"
        try:
            answer = self._caller.again(lambda: self._caller.send("GET", query, timeout_s=SLOW_S), tries)
            return [(str(each["sha256"]), int(each["length"])) for each in json_object(answer)["chunks"]]
        except (Refused, LookupError, TypeError, ValueError):
            return []

    def patch(self, dataset_id: str, sha256: str, body: bytes, *, tries: int | None = None) -> int:
        """Upload a chunk as an encoded patch; the number of bytes sent, 0 when it was not taken."""
        try:
            self._put(f"{_set(dataset_id)}/patch/{sha256}", body, tries, answers=False)
        except Refused:
            return 0
        return len(body)

    def publish(self, dataset_id: str, name: str | None, hosts: Sequence[str] = ()) -> dict[str, Any]:
        """Publish a data set (``DatasetView``). ``hosts``: those it was recorded on."""
        return self._post(f"{_set(dataset_id)}/publish", {"name": name, "hosts": list(hosts)})

    def remove(self, dataset_id: str) -> dict[str, Any]:
        """Remove a data set (``DatasetRemoveReply``)."""
        return self._post(f"{_set(dataset_id)}/remove", {})

    def unname(self, dataset_id: str, name: str) -> dict[str, Any]:
        """Free one of a data set's names (``DatasetView``)."""
        return self._post(f"{_set(dataset_id)}/unname", {"name": name})

    def listing(self, dataset_id: str, *, tries: int | None = None) -> Listing:
        """Fetch and verify the listing; Damaged when it does not have this id, or breaks a rule."""
        document = self._get(_set(dataset_id), dataset_id, tries)
        try:
            return parse(document)
        except BadListing as error:
            raise Damaged(f"the receiver's data set {dataset_id[:12]} cannot be used: {error}") from error

    def piece(self, dataset_id: str, sha256: str, *, tries: int | None = None) -> bytes:
        """Fetch and verify a chunk; Damaged when it has another SHA-256."""
        return self._get(_chunk(dataset_id, sha256), sha256, tries)

    # -- inside -------------------------------------------------------------------------------------------------

    def _get(self, path: str, sha256: str, tries: int | None) -> bytes:
        def once() -> bytes:
            body = self._caller.send("GET", path).body
            if hashlib.sha256(body).hexdigest() != sha256:
                raise Damaged(f"{path} arrived damaged ({len(body)} bytes)")
            return body

        return self._caller.again(once, tries)

    def _put(self, path: str, body: bytes, tries: int | None, *, answers: bool = True) -> dict[str, Any]:
        headers = {"Content-Length": str(len(body)), "Content-Type": "application/octet-stream"}

        def once() -> dict[str, Any]:
            answer = self._caller.send("PUT", path, body=io.BytesIO(body), headers=headers, timeout_s=SLOW_S)
            return json_object(answer) if answers else {}

        return self._caller.again(once, tries)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        content = strict_json.dumps(body)
        answer = self._caller.again(lambda: self._caller.send("POST", path, body=content, timeout_s=SLOW_S), None)
        return json_object(answer)


def _set(dataset_id: str) -> str:
    return f"/v1/dataset/{dataset_id}"


def _chunk(dataset_id: str, sha256: str) -> str:
    return f"{_set(dataset_id)}/piece/{sha256}"
