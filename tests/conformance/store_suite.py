"""The checks for a store on every kind of disk. A test module yields each check against each kind of store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from stored import provenance_of

from training.fleet.store.artifacts import Artifact, ArtifactStore
from training.fleet.store.errors import (
    BadName,
    DamagedArtifact,
    Fenced,
    Incomplete,
    NotStored,
    OffsetMismatch,
    StoreFull,
    WrongDigest,
)
from training.fleet.store.incoming import PartFile
from training.fleet.store.index import IndexRow

BODY = bytes(range(256)) * 40
SHA = hashlib.sha256(BODY).hexdigest()
CLAIM = "c" * 32


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def problems(store: ArtifactStore) -> list[str]:
    """Re-hash every bundle; what is wrong with those that are damaged."""
    found = []
    for artifact in store.artifacts():
        try:
            store.verify(artifact.artifact_id, model=artifact.model, mode=artifact.mode)
        except DamagedArtifact as damage:
            found.append(f"{artifact.path}: {damage}")
    return found


def upload(store: ArtifactStore, body: bytes = BODY, claim: str = CLAIM, *, model: str = "gbt") -> Artifact:
    part = store.open_part(claim, sha(body))
    try:
        part.write(body)
        digest = part.seal(sha256=sha(body), size=len(body))
        return store.publish(part, digest, model=model, mode="oracle")
    finally:
        part.close()


def row(artifact: Artifact, job_id: str = "job", attempt: int = 1) -> IndexRow:
    return IndexRow(
        artifact_id=artifact.artifact_id,
        model=artifact.model,
        mode=artifact.mode,
        job_id=job_id,
        attempt=attempt,
        size=artifact.size,
        stored_at=1_700_000_000.5,
        path=artifact.path,
    )


def read_back(store: ArtifactStore, artifact: Artifact) -> str:
    return store.verify(artifact.artifact_id, model=artifact.model, mode=artifact.mode).artifact_id


def part_with(store: ArtifactStore, body: bytes, announced: bytes = BODY) -> PartFile:
    part = store.open_part(CLAIM, sha(announced))
    part.write(body)
    return part


# -- uploads ----------------------------------------------------------------------------------------------------


def check_upload_is_found_and_verified(store: ArtifactStore) -> None:
    artifact = upload(store)
    assert artifact.artifact_id == SHA
    assert artifact.path == f"gbt_oracle/{SHA}/bundle.tar.zst"
    assert store.find(SHA, model="gbt", mode="oracle") == artifact
    assert read_back(store, artifact) == SHA
    assert store.offset(CLAIM, SHA) == 0  # the part became the bundle


def check_nothing_is_found_where_nothing_was_stored(store: ArtifactStore) -> None:
    assert store.find(SHA, model="gbt", mode="oracle") is None
    with pytest.raises(NotStored):
        store.verify(SHA, model="gbt", mode="oracle")


def check_equal_bundles_are_stored_once(store: ArtifactStore) -> None:
    assert upload(store, claim="a" * 32) == upload(store, claim="b" * 32)
    assert problems(store) == []


def check_a_model_of_its_own_has_a_folder_of_its_own(store: ArtifactStore) -> None:
    upload(store, model="gbt")
    upload(store, model="transformer_ssl")
    assert {artifact.model for artifact in store.artifacts()} == {"gbt", "transformer_ssl"}


def check_cut_upload_goes_on_where_it_stopped(store: ArtifactStore) -> None:
    part = part_with(store, BODY[:1000])
    with pytest.raises(Incomplete) as caught:
        part.seal(sha256=SHA, size=len(BODY))
    assert caught.value.stored == 1000
    part.close()
    assert store.offset(CLAIM, SHA) == 1000
    part = store.open_part(CLAIM, SHA, offset=1000)
    part.write(BODY[1000:])
    store.publish(part, part.seal(sha256=SHA, size=len(BODY)), model="gbt", mode="oracle")
    store.verify(SHA, model="gbt", mode="oracle")


def check_going_on_earlier_overwrites(store: ArtifactStore) -> None:
    part_with(store, b"x" * 500).close()
    part = store.open_part(CLAIM, SHA, offset=0)
    assert part.offset == 0
    part.write(BODY)
    assert part.seal(sha256=SHA, size=len(BODY)) == SHA


def check_going_on_beyond_what_is_stored_is_refused(store: ArtifactStore) -> None:
    part_with(store, BODY[:10]).close()
    with pytest.raises(OffsetMismatch) as caught:
        store.open_part(CLAIM, SHA, offset=11)
    assert caught.value.stored == 10


def check_wrong_bytes_are_refused_and_thrown_away(store: ArtifactStore) -> None:
    part = part_with(store, b"y" * len(BODY))
    with pytest.raises(WrongDigest):
        part.seal(sha256=SHA, size=len(BODY))
    assert store.offset(CLAIM, SHA) == 0
    with pytest.raises(Fenced):
        part.write(b"more")


def check_more_bytes_than_announced_are_refused(store: ArtifactStore) -> None:
    part = part_with(store, BODY + b"!")
    with pytest.raises(WrongDigest):
        part.seal(sha256=None, size=len(BODY))


def check_undeclared_upload_is_named_by_what_arrived(store: ArtifactStore) -> None:
    part = store.open_part(CLAIM, None)
    part.write(BODY)
    digest = part.seal(sha256=None, size=None)
    assert store.publish(part, digest, model="mlp", mode="realistic").artifact_id == SHA


def check_empty_bundle_is_a_bundle(store: ArtifactStore) -> None:
    assert read_back(store, upload(store, b"")) == sha(b"")


def check_dropped_part_leaves_nothing(store: ArtifactStore) -> None:
    part = part_with(store, BODY)
    part.drop()
    part.close()
    assert store.offset(CLAIM, SHA) == 0


# -- fencing ----------------------------------------------------------------------------------------------------


def check_successor_shuts_the_stalled_writer_out(store: ArtifactStore) -> None:
    stalled = part_with(store, BODY[:100])
    successor = store.open_part(CLAIM, SHA, offset=100)
    for attempt in (
        lambda: stalled.write(b"late"),
        lambda: stalled.seal(sha256=None, size=None),
        lambda: store.publish(stalled, SHA, model="gbt", mode="oracle"),
    ):
        with pytest.raises(Fenced):
            attempt()
    stalled.drop()  # removes nothing that is not its own
    stalled.close()
    successor.write(BODY[100:])
    store.publish(successor, successor.seal(sha256=SHA, size=len(BODY)), model="gbt", mode="oracle")
    store.verify(SHA, model="gbt", mode="oracle")


def check_sealed_writer_is_shut_out_too(store: ArtifactStore) -> None:
    sealed = part_with(store, BODY)
    digest = sealed.seal(sha256=SHA, size=len(BODY))
    store.open_part(CLAIM, SHA, offset=0).close()
    with pytest.raises(Fenced):
        store.publish(sealed, digest, model="gbt", mode="oracle")


def check_claims_do_not_share_parts(store: ArtifactStore) -> None:
    first = store.open_part("a" * 32, SHA)
    second = store.open_part("b" * 32, SHA)
    first.write(BODY)
    second.write(BODY[:5])
    assert (store.offset("a" * 32, SHA), store.offset("b" * 32, SHA)) == (len(BODY), 5)
    first.close()
    second.close()


# -- rot --------------------------------------------------------------------------------------------------------


def check_rot_is_found(store: ArtifactStore, rot: Callable[[str], None]) -> None:
    rot(upload(store).path)
    with pytest.raises(DamagedArtifact):
        store.verify(SHA, model="gbt", mode="oracle")
    with pytest.raises(DamagedArtifact):
        store.confirm(SHA, model="gbt", mode="oracle")
    assert len(problems(store)) == 1


def check_uploading_again_heals_rot(store: ArtifactStore, rot: Callable[[str], None]) -> None:
    rot(upload(store).path)
    upload(store)
    assert store.confirm(SHA, model="gbt", mode="oracle").size == len(BODY)


# -- names ------------------------------------------------------------------------------------------------------

HOSTILE = ["", "..", "../x", "a/b", "a\\b", ".hidden", "A", "a\n", "a\0", "é", "x" * 65, "-x", "a b"]


def check_hostile_names_never_reach_the_disk(store: ArtifactStore) -> None:
    for name in HOSTILE:
        with pytest.raises(BadName):
            store.find(SHA, model=name, mode="oracle")
        with pytest.raises(BadName):
            store.find(SHA, model="gbt", mode=name)
        with pytest.raises(BadName):
            store.find(name, model="gbt", mode="oracle")
    for claim in ["", "..", "../../etc", "a/b", "a\\b", "a\n", "x" * 129]:
        with pytest.raises(BadName):
            store.open_part(claim, SHA)
        with pytest.raises(BadName):
            store.write_provenance(Artifact(SHA, "gbt", "oracle", 1), job_id=claim, attempt=1, record={})
    for digest in ["x", SHA.upper(), SHA + "0", f"../{SHA}"]:
        with pytest.raises(BadName):
            store.open_part(CLAIM, digest)


# -- provenance and index ---------------------------------------------------------------------------------------


def check_every_attempt_has_its_provenance(store: ArtifactStore) -> None:
    artifact = upload(store)
    store.write_provenance(artifact, job_id="j1", attempt=2, record={"host": "pi"})
    store.write_provenance(artifact, job_id="j2", attempt=1, record={"host": "pc"})
    store.write_provenance(artifact, job_id="j2", attempt=1, record={"host": "pc, told twice"})
    records = {(r["job_id"], r["attempt"]): r["host"] for r in provenance_of(store, artifact)}
    assert records == {("j1", 2): "pi", ("j2", 1): "pc, told twice"}
    assert all(r["artifact_id"] == SHA for r in provenance_of(store, artifact))


def check_index_repair_settles(store: ArtifactStore) -> None:
    rows = [row(upload(store, bytes([n])), f"job-{n}") for n in range(5)]
    for each in rows:
        store.index.append(each)
    assert not store.index.repair(rows).rebuilt  # what was appended is what the database says
    assert store.index.repair(rows[:3]).rebuilt
    repaired = store.index.repair(rows)
    assert (repaired.rebuilt, repaired.rows, repaired.cut_bytes) == (True, 5, 0)
    assert not store.index.repair(rows).rebuilt


def check_empty_index_is_left_alone(store: ArtifactStore) -> None:
    assert not store.index.repair([]).rebuilt


# -- room -------------------------------------------------------------------------------------------------------


def check_watermark_refuses_before_the_body(store: ArtifactStore) -> None:
    assert store.has_room()
    with pytest.raises(StoreFull):
        store.open_part(CLAIM, SHA, coming=10**15)
    assert store.incoming.claims() == set()


CHECKS = [check for name, check in sorted(globals().items()) if name.startswith("check_")]
