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
    "queue.plan_part",
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
    "worker.save.replaced",
    "worker.before.SendClaim",
    "worker.after.SendClaim",
    "worker.before.SendHeartbeat",
    "worker.after.SendHeartbeat",
    "worker.before.Upload",
    "worker.after.Upload",
    "worker.before.SendComplete",
    "worker.after.SendComplete",
    "worker.before.SendFail",
    "worker.after.SendFail",
    "worker.before.SendOutput",
    "worker.after.SendOutput",
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
TRAINER = ("trainer.begun", "trainer.training", "trainer.half_saved", "trainer.saved")  # its own program
LAUNCHER = ("launcher.idle", "launcher.training")  # from outside: it imports nothing of ours

# Not passed in the storm of kills.py, or not surely: each has a scene of its own (scenes.py).
ELSEWHERE = (
    "database.copied",
    "database.migrated",
    "client.sent.GET",
    "worker.fetch.piece",
    "worker.fetch.stamped",
    "worker.fetch.whole",
    "retention.decided",
    "retention.noted",
    "retention.unlinked",
    "transition.adopt",
    "transition.readopt",
    "transition.pardon",
    "transition.deliver",
    "transition.take_out",
    "transition.hold",
    "transition.unhold",
)
NAMES = tuple(itertools.chain(RECEIVER, WORKER, TRAINER, LAUNCHER))
