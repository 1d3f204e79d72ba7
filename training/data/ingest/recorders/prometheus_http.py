"""Make GET requests to a Prometheus server, with the standard library; a failure raises DataError with one sentence."""

import base64
import http.client
import json
import os
from collections.abc import Callable
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from training.data.errors import DataError

TIMEOUT_S = 60.0
TOKEN = "PROMETHEUS_TOKEN"  # noqa: S105 - the name of an environment variable
SAID_MAX = 200  # characters of a server's reason


def is_address(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def without_password(url: str) -> tuple[str, str | None]:
    """Return the address without its user name and password, and the header for authorization (None without one).

    The header contains these, or else the token in the environment variable ``PROMETHEUS_TOKEN``. Raises DataError for
    another address than one of http or https.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DataError(f"{url} is no address of a Prometheus: it begins with http:// or https://.")
    netloc = parts.netloc.rpartition("@")[2]
    header = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        header = "Basic " + base64.b64encode(pair.encode()).decode()
    elif os.environ.get(TOKEN):
        header = f"Bearer {os.environ[TOKEN]}"
    return urlunsplit((parts.scheme, netloc, parts.path, "", "")), header


def fetcher(base: str, header: str | None) -> Callable[[str], bytes]:
    """Return a function that requests an address of the server ``base`` and returns the answer; it raises DataError if
    the request fails."""

    def fetch(url: str) -> bytes:
        request = Request(url, headers={"Accept": "application/json"} | ({"Authorization": header} if header else {}))  # noqa: S310 - http or https
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                body: bytes = answer.read()
                return body
        except HTTPError as error:
            raise _refused(base, error) from None
        except (http.client.IncompleteRead, ConnectionError) as error:
            raise DataError(f"The Prometheus at {base} broke off in the middle ({error}): ask it again.") from None
        except (URLError, TimeoutError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error) or "it says nothing"
            raise DataError(
                f"No Prometheus answers at {base} ({why}): is it running, and is this its address?"
            ) from None

    return fetch


def _refused(base: str, error: HTTPError) -> DataError:
    if error.code in (401, 403):
        return DataError(
            f"The Prometheus at {base} asks for a password: write https://NAME:PASSWORD@… as its address, or put a "
            f"token into the environment variable {TOKEN}."
        )
    try:
        said = str(json.loads(error.read())["error"])[:SAID_MAX]
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return DataError(
            f"{base} answers {error.code} {error.reason} where a Prometheus has its HTTP API: name the address under "
            "which it serves /api/v1."
        )
    return DataError(f"The Prometheus at {base} refuses a query: {said}.")
