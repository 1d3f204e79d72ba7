"""The page for a refused request: the sentence of the refusal, and a link to the login where that can help."""

from http import HTTPStatus

from training.fleet.pages.rendering import Frame, path_part, render
from training.fleet.wire.constants import ProblemType, Refusal

_LOGIN_HELPS = (ProblemType.OPERATOR_TOKEN, ProblemType.NO_CERTIFICATE, ProblemType.CERTIFICATE_EXPIRED)


def page(refusal: Refusal, frame: Frame, again: bool = True) -> str:
    """Render a refusal, whose sentence has cause and remedy. If a login could help, link it; with ``again``, the login
    returns to the refused address."""
    title = HTTPStatus(refusal.problem_type.status).phrase
    login = None
    if refusal.problem_type in _LOGIN_HELPS:
        login = f"/login?to={path_part(frame.address)}" if again and frame.address else "/login"
    return render("refusal.html", frame, title=title, detail=refusal.detail, login=login)
