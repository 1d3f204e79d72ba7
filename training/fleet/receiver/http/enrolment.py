"""The endpoints of certificates, one-time codes and tokens: they enroll and revoke hosts, watched hosts, operators and
readers."""

import logging
import re

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.receiver.http.bodies import acting, caller, read_json
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.problems import Answer
from training.fleet.receiver.security.authority import Authority, AuthorityError
from training.fleet.receiver.security.registry import CODE_LIFE_S, Certified, Invitation, Token
from training.fleet.receiver.wheel import own_wheel
from training.fleet.service.audit import Act
from training.fleet.wire import messages as wire
from training.fleet.wire.constants import HOST_ID_PATTERN, ProblemType, Refusal
from training.fleet.wire.identity import Role

logger = logging.getLogger(__name__)

DAYS_MAX = 366.0


# -- joining machines -------------------------------------------------------------------------------------------


async def authority(context: ReceiverContext, _request: Request) -> Answer:
    """Answer with the authority's certificate. A client that cannot verify TLS yet checks it by its fingerprint."""
    own = _authority(context)
    return wire.AuthorityReply(ca=own.certificate, fingerprint=own.fingerprint, now=context.clock.now())


async def wheel(context: ReceiverContext, _request: Request) -> Answer:
    """Answer with this program's wheel; the caller checks it by the SHA-256 that came with an invitation."""
    _authority(context)
    made = await context.disk(own_wheel)
    if made is None:
        raise Refusal(ProblemType.NOT_FOUND, "this receiver was started without being installed, so it has no wheel")
    return Response(made.content, media_type="application/zip")


async def join(context: ReceiverContext, request: Request) -> Answer:
    """Issue a certificate for a one-time code. Wrong codes count against the client's IP address."""
    _authority(context)
    address = context.authenticator.address(request)
    context.authenticator.limit.check(address)
    body = await read_json(context, request, wire.JoinRequest)
    role, name = _role(body.role), _name(body.name)
    try:
        code = await context.act(request, lambda: context.registry.check_code(role, name, body.code, body.csr.encode()))
    except Refusal:
        context.authenticator.limit.failed(address)
        raise
    answer = await _certify(context, request, body.csr, role, name, code, f"address {address}")
    logger.info("%s %s joined from %s", role, name, address)
    return answer


async def renew(context: ReceiverContext, request: Request) -> Answer:
    """Renew the certificate of the connection; the old one stays valid until its end."""
    _authority(context)
    principal = caller(request)
    assert principal is not None
    assert principal.owner is not None
    role, name = principal.owner
    body = await read_json(context, request, wire.RenewRequest)
    await context.act(request, lambda: context.registry.check_pace(role, name))
    answer = await _certify(context, request, body.csr, role, name, None, acting(context, request))
    logger.info("%s %s renewed its certificate", role, name)
    return answer


# -- the operator -----------------------------------------------------------------------------------------------


async def invite(context: ReceiverContext, request: Request) -> Answer:
    own = _authority(context)
    body = await read_json(context, request, wire.InviteRequest)
    role, name = _role(body.role), _name(body.name)
    who = acting(context, request)

    def decide() -> tuple[Invitation, str | None]:
        made = context.registry.invite(role, name)
        context.audit.write(who, Act.INVITE, f"{role} {name}", after={"until": made.expires_at})
        known = context.service.host_registry.called(name) if role is Role.HOST else None
        if known is None or known.name == name:
            return made, None
        return made, (
            f"host {known.name} is known, and {name} differs from it by case only: lists of the plan mean both; "
            f"enroll {known.name} if it is that machine"
        )

    made, note = await context.act(request, decide)
    logger.info("%s %s may join within %d minutes", role, name, CODE_LIFE_S // 60)
    url, program = context.settings.public_url, await context.disk(own_wheel)
    return wire.InviteReply.of(
        own,
        name=name,
        role=role,
        code=made.code,
        expires_in_s=CODE_LIFE_S,
        url=url,
        note="; ".join(each for each in (note, program and program.note) if isinstance(each, str)) or None,
        wheel=program and program.name,
        wheel_sha256=program and program.sha256,
    )


async def revoke(context: ReceiverContext, request: Request) -> Answer:
    """Revoke a name's certificates and codes. Before this call answers, a host's attempts are ended, and the
    connections with the revoked certificates are closed, except a proxy's."""
    body = await read_json(context, request, wire.RevokeRequest)
    role, name, who = _role(body.role), _name(body.name), acting(context, request)
    registry = context.registry

    def decide() -> tuple[list[Certified], int]:
        gone = registry.revoke(role, name)
        jobs = context.service.expel(name) if role is Role.HOST else 0
        had = {"certificates": len(gone), "jobs": jobs}
        context.audit.write(who, Act.REVOKE, f"{role} {name}", before=had)
        return gone, jobs

    gone, jobs = await context.act(request, decide)
    registry.apply(gone)
    context.hang_up(registry.is_revoked)
    if role is Role.HOST:
        await context.forget_uploads()
    context.room.wake()  # wakes claims that wait behind a proxy: they are refused now
    logger.warning("%s %s was revoked: %d certificates, %d jobs", role, name, len(gone), jobs)
    return wire.RevokeReply(name=name, certificates=len(gone), jobs=jobs)


async def certificates(context: ReceiverContext, _request: Request) -> Answer:
    views = [wire.CertificateView.of(each) for each in context.registry.certificates()]
    return wire.CertificatesReply(certificates=views, now=context.clock.now())


async def tokens(context: ReceiverContext, _request: Request) -> Answer:
    views = [wire.TokenView.of(each) for each in context.registry.tokens()]
    return wire.TokensReply(tokens=views, now=context.clock.now())


async def add_token(context: ReceiverContext, request: Request) -> Answer:
    body = await read_json(context, request, wire.TokenRequest)
    name = _name(body.name)
    if not 0 < body.days <= DAYS_MAX:
        raise Refusal(ProblemType.BAD_REQUEST, f"$.days: more than 0 and at most {DAYS_MAX:g}")
    role = _role(body.role)
    if role in (Role.HOST, Role.WATCHER):
        raise Refusal(ProblemType.BAD_REQUEST, "$.role: expected operator or reader; hosts have certificates")
    who, registry = acting(context, request), context.registry

    def decide() -> tuple[str, Token]:
        secret, token = registry.add_token(name, body.days, role)
        context.audit.write(who, Act.TOKEN_ADD, name, after={"until": token.expires_at})
        return secret, token

    secret, token = await context.act(request, decide)
    registry.apply([token])
    logger.info("a token for %s was made", name)
    return wire.TokenReply(name=name, token=secret, expires_at=token.expires_at)


async def revoke_token(context: ReceiverContext, request: Request) -> Answer:
    body = await read_json(context, request, wire.TokenRevokeRequest)
    name, who, registry = _name(body.name), acting(context, request), context.registry

    def decide() -> list[Token]:
        gone = registry.revoke_token(name, every=body.every)
        context.audit.write(who, Act.TOKEN_REVOKE, name, before={"tokens": len(gone)})
        return gone

    gone = await context.act(request, decide)
    registry.apply(gone)
    logger.warning("%d tokens of %s were revoked", len(gone), name)
    return wire.TokenRevokeReply(name=name, revoked=len(gone))


# -- inside -----------------------------------------------------------------------------------------------------


def _authority(context: ReceiverContext) -> Authority:
    if context.authority is None:
        raise Refusal(
            ProblemType.NO_AUTHORITY,
            "this receiver serves its own machine without TLS, so there is nothing to join; "
            "start it with --tls and --host 0.0.0.0",
        )
    return context.authority


async def _certify(
    context: ReceiverContext, request: Request, csr: str, role: Role, name: str, code: str | None, who: str
) -> wire.CertificateReply:
    """Sign a certificate and add it to the registry. ``code`` is the digest of the one-time code that this uses up;
    None for a renewal."""
    own, registry = _authority(context), context.registry
    try:
        issued = await context.disk(lambda: own.issue(csr, role, name))
    except AuthorityError as error:
        problem_type = ProblemType.BAD_REQUEST if str(error).startswith("$.csr") else ProblemType.UNAVAILABLE
        raise Refusal(problem_type, str(error)) from None
    certified = Certified(issued.fingerprint, role, name, issued.issued_at, issued.expires_at)

    def decide() -> list[Certified]:
        gone = registry.admit(certified, code, csr.encode())
        context.audit.write(
            who,
            Act.RENEW if code is None else Act.JOIN,
            f"{role} {name}",
            before={"certificates": len(gone)} if gone else None,
            after={"certificate": certified.fingerprint, "until": certified.expires_at},
        )
        return gone

    gone = await context.act(request, decide)
    registry.apply([*gone, certified])
    if gone:  # closes their holders' connections; the next request is refused with the reason
        context.hang_up(registry.is_revoked)
        context.room.wake()
        logger.warning("%s %s joined again: %d earlier certificates are revoked", role, name, len(gone))
    valid_s = issued.expires_at - issued.issued_at
    return wire.CertificateReply.of(
        issued, name=name, role=role, certificate=issued.pem, ca=own.certificate, valid_s=valid_s
    )


def _role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise Refusal(ProblemType.BAD_REQUEST, f"$.role: expected one of {', '.join(Role)}") from None


def _name(text: str) -> str:
    if not re.fullmatch(HOST_ID_PATTERN, text):
        raise Refusal(
            ProblemType.BAD_REQUEST,
            "$.name: 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first",
        )
    return text
