"""The endpoints by which hosts and operators are let in and put out: decode, call, encode."""

from __future__ import annotations

import logging
import re

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.receiver.http.bodies import acting, caller, read_json
from training.fleet.receiver.http.context import Hub
from training.fleet.receiver.http.problems import reply
from training.fleet.receiver.security.authority import Authority, AuthorityError, Issued
from training.fleet.receiver.security.registry import (
    CODE_LIFE_S,
    Apply,
    Certified,
    Invitation,
    Token,
)
from training.fleet.service.audit import Act
from training.fleet.service.membership import expel
from training.fleet.wire.identity import Role
from training.fleet.wire.messages import (
    HOST_ID_PATTERN,
    AuthorityReply,
    CertificateReply,
    CertificatesReply,
    CertificateView,
    InviteReply,
    InviteRequest,
    JoinRequest,
    Refusal,
    RenewRequest,
    RevokeReply,
    RevokeRequest,
    Slug,
    TokenReply,
    TokenRequest,
    TokenRevokeReply,
    TokenRevokeRequest,
    TokensReply,
    TokenView,
)

logger = logging.getLogger(__name__)

DAYS_MAX = 366.0


# -- those who join ---------------------------------------------------------------------------------------------


async def authority(hub: Hub, _request: Request) -> Response:
    """Return the authority's certificate; its fingerprint proves it before the connection is trusted."""
    own = _authority(hub)
    answer = AuthorityReply(ca=own.certificate, fingerprint=own.fingerprint, now=hub.clock.now())
    return reply(answer)


async def join(hub: Hub, request: Request) -> Response:
    """A certificate for a one-time code. Wrong codes are counted against the address."""
    own, address = _authority(hub), hub.door.address(request)
    hub.door.limit.check(address)
    body = await read_json(hub, request, JoinRequest)
    role, name = _role(body.role), _name(body.name)
    asked = body.csr.encode()
    registry = hub.door.registry
    try:
        code = await hub.act(request, lambda: registry.check_code(role, name, body.code, asked))
    except Refusal:
        hub.door.limit.failed(address)
        raise
    issued = await _issue(hub, own, body.csr, role, name)
    certified = Certified(issued.fingerprint, role, name, *_times(issued))
    await _enter(hub, request, certified, code, asked, f"address {address}")
    logger.info("%s %s joined from %s", role, name, address)
    return reply(_certificate(own, issued, role, name))


async def renew(hub: Hub, request: Request) -> Response:
    """A new certificate for whom the one on the connection names; that one stays good until its end."""
    own, principal = _authority(hub), caller(request)
    assert principal is not None
    name = principal.host_id or principal.operator
    assert name is not None
    role = Role.HOST if principal.host_id else Role.OPERATOR
    body = await read_json(hub, request, RenewRequest)
    await hub.act(request, lambda: hub.door.registry.check_pace(role, name))
    issued = await _issue(hub, own, body.csr, role, name)
    certified = Certified(issued.fingerprint, role, name, *_times(issued))
    await _enter(hub, request, certified, None, body.csr.encode(), acting(hub, request))
    logger.info("%s %s renewed its certificate", role, name)
    return reply(_certificate(own, issued, role, name))


# -- the operator -----------------------------------------------------------------------------------------------


async def invite(hub: Hub, request: Request) -> Response:
    own = _authority(hub)
    body = await read_json(hub, request, InviteRequest)
    role, name = _role(body.role), _name(body.name)
    who = acting(hub, request)

    def decide() -> tuple[Invitation, str | None]:
        made = hub.door.registry.invite(role, name)
        hub.audit.write(who, Act.INVITE, f"{role} {name}", after={"until": made.expires_at})
        known = hub.service.roster.called(name) if role is Role.HOST else None
        if known is None or known.name == name:
            return made, None
        return made, (
            f"host {known.name} is known, and {name} differs from it by case only: lists of the plan mean both; "
            f"enroll {known.name} if it is that machine"
        )

    made, note = await hub.act(request, decide)
    logger.info("%s %s may join within %d minutes", role, name, CODE_LIFE_S // 60)
    return reply(
        InviteReply(
            name=name,
            role=role,
            code=made.code,
            expires_in_s=CODE_LIFE_S,
            fingerprint=own.fingerprint,
            url=hub.settings.public_url,
            note=note,
        )
    )


async def revoke(hub: Hub, request: Request) -> Response:
    """Take the certificates back, end what the host holds, and hang up on it: all before this answers."""
    body = await read_json(hub, request, RevokeRequest)
    role, name = _role(body.role), _name(body.name)
    who = acting(hub, request)

    def decide() -> tuple[int, int, Apply]:
        gone, apply = hub.door.registry.revoke(role, name)
        jobs = expel(hub.service, name) if role is Role.HOST else 0
        had = {"certificates": len(gone), "jobs": jobs}
        hub.audit.write(who, Act.REVOKE, f"{role} {name}", before=had)
        return len(gone), jobs, apply

    count, jobs, apply = await hub.act(request, decide)
    apply()
    hub.hang_up(hub.door.registry.revoked)
    if role is Role.HOST:
        await hub.forget_uploads()
    hub.room.wake()  # whose connection is a proxy's is refused now, and not when its time is over
    logger.warning("%s %s was revoked: %d certificates, %d jobs", role, name, count, jobs)
    return reply(RevokeReply(name=name, certificates=count, jobs=jobs))


async def certificates(hub: Hub, _request: Request) -> Response:
    views = [
        CertificateView(
            name=each.name,
            role=each.role,
            fingerprint=each.fingerprint,
            issued_at=each.issued_at,
            expires_at=each.expires_at,
            revoked_at=each.revoked_at,
        )
        for each in hub.door.registry.certificates()
    ]
    return reply(CertificatesReply(certificates=views, now=hub.clock.now()))


async def tokens(hub: Hub, _request: Request) -> Response:
    views = [
        TokenView(
            name=each.name,
            created_at=each.created_at,
            expires_at=each.expires_at,
            revoked_at=each.revoked_at,
        )
        for each in hub.door.registry.tokens()
    ]
    return reply(TokensReply(tokens=views, now=hub.clock.now()))


async def add_token(hub: Hub, request: Request) -> Response:
    body = await read_json(hub, request, TokenRequest)
    name = _name(body.name)
    if not 0 < body.days <= DAYS_MAX:
        raise Refusal(Slug.BAD_REQUEST, f"$.days: more than 0 and at most {DAYS_MAX:g}")
    who = acting(hub, request)

    def decide() -> tuple[str, Token, Apply]:
        made = hub.door.registry.add_token(name, body.days)
        hub.audit.write(who, Act.TOKEN_ADD, name, after={"until": made[1].expires_at})
        return made

    secret, token, apply = await hub.act(request, decide)
    apply()
    logger.info("a token for %s was made", name)
    return reply(TokenReply(name=name, token=secret, expires_at=token.expires_at))


async def revoke_token(hub: Hub, request: Request) -> Response:
    body = await read_json(hub, request, TokenRevokeRequest)
    name = _name(body.name)
    who = acting(hub, request)

    def decide() -> tuple[int, Apply]:
        gone = hub.door.registry.revoke_token(name, every=body.every)
        hub.audit.write(who, Act.TOKEN_REVOKE, name, before={"tokens": gone[0]})
        return gone

    count, apply = await hub.act(request, decide)
    apply()
    logger.warning("%d tokens of %s were revoked", count, name)
    return reply(TokenRevokeReply(name=name, revoked=count))


# -- inside -----------------------------------------------------------------------------------------------------


def _authority(hub: Hub) -> Authority:
    if hub.authority is None:
        raise Refusal(
            Slug.NO_AUTHORITY,
            "this receiver serves its own machine without TLS, so there is nothing to join; "
            "start it with --tls and --host 0.0.0.0",
        )
    return hub.authority


async def _issue(hub: Hub, own: Authority, csr: str, role: Role, name: str) -> Issued:
    try:
        return await hub.disk(lambda: own.issue(csr, role, name))
    except AuthorityError as error:
        slug = Slug.BAD_REQUEST if str(error).startswith("$.csr") else Slug.UNAVAILABLE
        raise Refusal(slug, str(error)) from None


async def _enter(hub: Hub, request: Request, certified: Certified, code: str | None, asked: bytes, who: str) -> None:
    def decide() -> tuple[list[Certified], Apply]:
        gone, apply = hub.door.registry.admit(certified, code, asked)
        hub.audit.write(
            who,
            Act.RENEW if code is None else Act.JOIN,
            f"{certified.role} {certified.name}",
            before={"certificates": len(gone)} if gone else None,
            after={"certificate": certified.fingerprint, "until": certified.expires_at},
        )
        return gone, apply

    gone, apply = await hub.act(request, decide)
    apply()
    if gone:  # who had them is cut off, and told why when it asks again
        hub.hang_up(hub.door.registry.revoked)
        hub.room.wake()
        logger.warning(
            "%s %s joined anew: %d earlier certificates are revoked",
            certified.role,
            certified.name,
            len(gone),
        )


def _times(issued: Issued) -> tuple[float, float]:
    return issued.issued_at, issued.expires_at


def _certificate(own: Authority, issued: Issued, role: Role, name: str) -> CertificateReply:
    return CertificateReply(
        name=name,
        role=role,
        certificate=issued.pem,
        ca=own.certificate,
        fingerprint=issued.fingerprint,
        valid_s=issued.expires_at - issued.issued_at,
    )


def _role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise Refusal(Slug.BAD_REQUEST, "$.role: expected host or operator") from None


def _name(text: str) -> str:
    if not re.fullmatch(HOST_ID_PATTERN, text):
        raise Refusal(Slug.BAD_REQUEST, "$.name: 1 to 64 letters, digits, dots, dashes and underscores")
    return text
