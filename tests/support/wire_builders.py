"""Messages of the wire from the members that a test is about: what else they need is empty."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from msgspec import convert, inspect, structs

from training.fleet.client.answers import Unavailable
from training.fleet.wire.attempts import ClaimReply, Grant, HeartbeatReply
from training.fleet.wire.constants import Action
from training.fleet.wire.routes import ROUTES
from training.fleet.worker.state import events as t
from training.fleet.worker.state_transfer import StateTransfer


def no_transfer(assignment, folder, host="h"):
    """The transfer of an attempt without a receiver."""

    def unreachable():
        raise Unavailable(503, None, "not reachable")

    return StateTransfer(assignment, folder, host, unreachable)


def a_grant(job_id, claim_id, **members):
    """Return a grant of which only these members matter."""
    return Grant(
        **{"job_id": job_id, "claim_id": claim_id, "name": "", "spec": {}, "attempt": 1, "lease_s": 600.0, **members}
    )


def claim_answered(call, assignment=None, **members):
    """Return the receiver's answer to a claim: this grant, or none."""
    reply = ClaimReply(**members) if assignment is None else structs.replace(assignment, **members)
    return t.ClaimAnswered(call=call, reply=reply)


def beat_answered(call, order=Action.CONTINUE, lease_s=600.0, **members):
    """Return the receiver's answer to a heartbeat."""
    return t.HeartbeatAnswered(call=call, reply=HeartbeatReply(action=order, lease_s=lease_s, **members))


def filled(kind, **given):
    """Return the JSON value of a message of this kind with these members, which may themselves lack some."""
    return _filled(inspect.type_info(kind), given)


def whole(kind, **given):
    """Return a message of this kind, as a client's call of a reader or an operator answers."""
    return convert(filled(kind, **given), kind).to_dict()


def filled_reply(method, path, given):
    """Return a whole reply of the endpoint that answers this request."""
    for route in ROUTES:
        if route.method == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route.path), urlsplit(path).path):
            return given if route.reply in (None, dict) else filled(route.reply, **given)
    return given


def _filled(info, given):
    match info:
        case inspect.StructType() if given is None or isinstance(given, dict):
            known = {} if given is None else given
            members = {each.encode_name: each for each in info.fields if each.required or each.encode_name in known}
            return known | {name: _filled(each.type, known.get(name)) for name, each in members.items()}
        case inspect.ListType() if given is None or isinstance(given, list):
            return [_filled(info.item_type, each) for each in given or []]
        case inspect.DictType() if given is None or isinstance(given, dict):
            return {key: _filled(info.value_type, each) for key, each in (given or {}).items()}
        case inspect.UnionType() if given is not None:
            return _filled(next(each for each in info.types if not isinstance(each, inspect.NoneType)), given)
    if given is not None:
        return given
    blanks = {inspect.StrType: "", inspect.IntType: 0, inspect.FloatType: 0.0, inspect.BoolType: False}
    return blanks.get(type(info))
