"""Every place in the code at which a process is killed, and who passes it. A test holds this list equal to the code."""

from __future__ import annotations

import itertools

RECEIVER = (
    "database.schema",
    "writer.before_commit",
    "writer.committed",
    "receiver.answering",
    "receiver.index.before",
    "receiver.index.after",
    "receiver.provenance",
    "store.part.written",
    "store.part.synced",
    "store.renamed",
    "store.published",
    "store.replace.written",
    "store.replace.done",
    "transition.insert",
    "transition.claim",
    "transition.heartbeat",
    "transition.complete",
    "transition.retry",
    "transition.hand_back",
    "transition.sweep",
    "transition.exhaust",
    "transition.cancel",
    "transition.requeue",
)
WORKER = (
    "worker.save.begin",
    "worker.save.written",
    "worker.save.replaced",
    "worker.before.SendClaim",
    "worker.after.SendClaim",
    "worker.before.SendBeat",
    "worker.after.SendBeat",
    "worker.before.Upload",
    "worker.after.Upload",
    "worker.before.SendComplete",
    "worker.after.SendComplete",
    "worker.before.SendFail",
    "worker.after.SendFail",
    "client.sent.POST",
    "client.sent.HEAD",
    "client.sent.PUT",
    "client.body",
    "worker.spawned",
    "worker.printed",
    "worker.trainer_ended",
    "worker.pack.begin",
    "bundle.member",
    "bundle.written",
    "worker.pack.end",
    "worker.discard",
)
TRAINER = (
    "trainer.begun",
    "trainer.training",
    "trainer.half_saved",
    "trainer.saved",
)  # its own program
LAUNCHER = ("launcher.idle", "launcher.training")  # from outside: it imports nothing of ours

# Not here: killed in tests of their own, or needing a storm that the simulation draws (adopt, readopt, pardon).
ELSEWHERE = (
    "database.copied",
    "database.migrated",
    "worker.fetch.piece",
    "worker.fetch.stamped",
    "worker.fetch.whole",
)
NAMES = tuple(itertools.chain(RECEIVER, WORKER, TRAINER, LAUNCHER))
