"""The page for what cannot be shown: the sentence of the refusal, and a way on."""

from __future__ import annotations

from http import HTTPStatus

from training.fleet.pages.rendering import Frame, render
from training.fleet.wire.messages import Refusal


def page(refusal: Refusal, frame: Frame) -> str:
    """Render a refusal; its sentence has cause and remedy."""
    title = HTTPStatus(refusal.problem_type.status).phrase
    return render("refusal.html", frame, title=title, detail=refusal.detail)
