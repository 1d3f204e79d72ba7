"""Make GET requests to a Prometheus server, with the standard library; a failure raises DataError with one sentence."""

import base64
import http.client
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request

from training import strict_json
from training.data.errors import DataError
from training.web import opened

TIMEOUT_S = 60.0  # of each read …
ANSWER_S = 180.0  # … and of the whole answer: a server may send single bytes for ever
TOKEN = "PROMETHEUS_TOKEN"  # noqa: S105 - the name of an environment variable
SAID_MAX = 200  # characters of a server's reason
REFUSAL_BYTES_MAX = 64 * 1024
ANSWER_BYTES_MAX = 256 * 1024**2  # of 2,000 steps; a host of 256 processors has 100 MB


def is_address(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def without_password(url: str) -> tuple[str, str | None]:
    """Return the address without user name, password, query and fragment, and the header for authorization, or None.

    The header contains the user name and password of the address, or else the token, or ``NAME:PASSWORD``, in the
    environment variable ``PROMETHEUS_TOKEN``. Raises DataError if ``url`` does not begin with http:// or https:// and a
    host.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # of brackets that hold no address
        parts = urlsplit("")
    netloc = parts.netloc.rpartition("@")[2]
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DataError(f"{netloc!r} is no address of a Prometheus: it begins with http:// or https://, and a host.")
    shown = os.environ.get(TOKEN, "").strip()
    if parts.username is not None:
        shown = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    header = f"Bearer {shown}" if shown else None
    if ":" in shown:  # a token has none
        header = "Basic " + base64.b64encode(shown.encode()).decode()
    return urlunsplit((parts.scheme, netloc, parts.path, "", "")), header


def fetcher(base: str, header: str | None) -> Callable[[str], bytes]:
    """Return a function that requests an address, with ``header``, and returns the answer; if that fails, it raises
    DataError, which names the server ``base``."""

    def fetch(url: str) -> bytes:
        answer: Future[bytes] = Future()

        def wait() -> None:
            try:
                answer.set_result(ask(url))
            except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
                answer.set_exception(error)

        threading.Thread(target=wait, daemon=True).start()
        try:
            return answer.result(ANSWER_S)
        except TimeoutError:
            raise DataError(
                f"The Prometheus at {base} has not answered in full within {ANSWER_S:.0f} s: ask for fewer hosts with "
                "--match, or for a shorter time."
            ) from None

    def ask(url: str) -> bytes:
        request = Request(url, headers={"Accept": "application/json"} | ({"Authorization": header} if header else {}))  # noqa: S310 - http or https
        try:
            with opened(request, TIMEOUT_S) as answer:
                return _body(base, answer)
        except HTTPError as error:
            with error:
                raise _refused(base, error, header) from None
        except (http.client.IncompleteRead, ConnectionError) as error:
            raise DataError(f"The Prometheus at {base} broke off in the middle ({error}): ask it again.") from None
        except (URLError, TimeoutError, http.client.HTTPException, ValueError) as error:
            # Others' words may repeat the password, and those of a ValueError are of the header.
            why = error.reason if isinstance(error, URLError) else type(error).__name__
            raise DataError(
                f"No Prometheus answers at {base} ({why}): is it running, and is this its address?"
            ) from None

    return fetch


def _body(base: str, answer: http.client.HTTPResponse) -> bytes:
    """Read an answer whole; raises DataError for one beyond the limit, without reading on, and IncompleteRead for one
    that ends early."""
    body = answer.read(ANSWER_BYTES_MAX + 1)
    if len(body) > ANSWER_BYTES_MAX:
        raise DataError(
            f"The Prometheus at {base} answers with more than {ANSWER_BYTES_MAX // 1024**2} MiB: ask for fewer hosts "
            "with --match, or for fewer series with --query."
        )
    if answer.length:  # bytes that it announced, and did not send
        raise http.client.IncompleteRead(body, answer.length)
    return body


def _refused(base: str, error: HTTPError, header: str | None) -> DataError:
    if error.code in (401, 403):
        return DataError(
            f"The Prometheus at {base} asks for a password: put its token, or NAME:PASSWORD, into the environment "
            f"variable {TOKEN}."
        )
    try:
        said = str(strict_json.loads(error.read(REFUSAL_BYTES_MAX))["error"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return DataError(
            f"{base} answers {error.code} {http.client.responses.get(error.code, '')} where a Prometheus has its HTTP "
            "API: name the address under which it serves /api/v1."
        )
    return DataError(f"The Prometheus at {base} refuses a query: {words_of(said, header)}.")


def words_of(said: str, header: str | None) -> str:
    """Return the first ``SAID_MAX`` characters of what a server said, or a fixed phrase if that repeats the token or
    password of ``header``. The token or password is searched as it is sent and as it is typed, also percent-encoded."""
    way, _, sent = (header or "").partition(" ")
    typed = base64.b64decode(sent).decode().partition(":")[2] if way == "Basic" else sent
    both = f"{said} {unquote(said)}"  # before it is cut, perhaps within the password
    if any(form in both for form in {sent, typed} - {""}):
        return "its words repeat the password"
    return said[:SAID_MAX]
