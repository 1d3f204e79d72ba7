"""Send HTTP requests that may hold a secret, with the standard library; no redirect is followed.

An error of :func:`post` repeats no words of the server, because these may hold the address or a token.
"""

import json
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse, responses
from typing import Any
from urllib.error import HTTPError, URLError

from training.printable import one_line

ANSWER_BYTES_MAX = 4096


class PostError(Exception):
    """A post failed; the error's text continues a sentence whose subject is the server, as "answered 404 (Not
    Found)"."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect, because another server would get the address and the token."""

    def redirect_request(self, *_: object) -> None:
        return None


def opened(request: urllib.request.Request, timeout_s: float) -> HTTPResponse:
    """Send ``request`` and return the answer. Raises as ``urlopen`` does, and HTTPError for a redirect, too."""
    answer: HTTPResponse = urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout_s)
    return answer


def post(address: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float) -> None:
    """Post ``body`` as JSON to an address of http or https. Raises PostError."""
    data, said = json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    try:
        with opened(urllib.request.Request(address, data, said), timeout_s) as answer:  # noqa: S310 - see above
            answer.read(ANSWER_BYTES_MAX)
    except HTTPError as error:
        error.close()
        raise PostError(f"answered {error.code} ({responses.get(error.code, 'no usual status')})") from None
    except URLError as error:
        raise PostError(f"cannot be reached: {one_line(error.reason, 120)}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise PostError(f"gave no valid answer: {type(error).__name__}") from None
