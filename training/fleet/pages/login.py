"""The page that asks a browser without a certificate for a token."""

from __future__ import annotations

from training.fleet.pages.rendering import Frame, render


def page(to: str, mistake: str | None, frame: Frame) -> str:
    """Render the form; ``to`` is where it leads, ``mistake`` the error of the last try."""
    return render("login.html", frame, to=to, mistake=mistake)
