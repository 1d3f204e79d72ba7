"""Fetch a data set to this host before any job needs it: ``python -m training.fleet.worker.prefetch NAME …``.

The installer calls this, so that the first job need not wait. Exit codes: 0 fetched (or the worker will fetch the
rest), 1 refused or not stored, 2 wrong usage or certificate, 75 receiver not reached or unavailable.
"""

import argparse
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from training.command_line import parser_of
from training.fleet.client.client import ClientError, FleetClient, Unavailable, Unreachable
from training.fleet.client.credentials import Credentials, CredentialsError
from training.fleet.client.datasets import DatasetCalls
from training.fleet.wire.constants import DONE, REFUSED, UNREACHABLE, USAGE
from training.fleet.wire.dataset_listing import Catalogue, UnknownDataset
from training.fleet.worker.datasets import GIB, CacheInUse, DatasetCache, FetchError, Order, Stopped
from training.printable import printable
from training.streams import complain, replace_unprintable

PROGRAM = "training.fleet.worker.prefetch"


def fetch(source: DatasetCalls, dataset_id: str, folder: Path, cache_bytes: int, within_s: float) -> str:
    """Fetch the data set to ``folder``; return a sentence on what is there, or that a running worker fetches its data
    sets itself. Raises FetchError, OSError.

    After ``within_s`` seconds the fetch stops, and the worker later fetches the rest.
    """
    told: list[tuple[int, int]] = []
    order = Order(lambda done, whole: told.append((done, whole)))
    timer = threading.Timer(within_s, order.stopped.set)
    timer.daemon = True
    timer.start()
    short = dataset_id[:12]
    try:
        with closing(DatasetCache(folder, cache_bytes)) as cache:
            cache.provide(dataset_id, source, order)
        return f"data set {short} is here, whole and verified"
    except CacheInUse:
        return "the worker that runs here fetches its data sets itself"
    except Stopped:
        done, whole = told[-1] if told else (0, 0)
        return f"{done} of {whole} bytes of data set {short} are here; the worker fetches the rest"
    finally:
        timer.cancel()


def resolve(client: FleetClient, reference: str) -> str:
    """Return the id of the data set that a name, an id or the beginning of an id means. Raises UnknownDataset,
    ClientError."""
    rows = client.datasets.datasets()["datasets"]
    names = {str(name): str(row["dataset_id"]) for row in rows for name in row["names"]}
    return Catalogue(frozenset(str(row["dataset_id"]) for row in rows), names).resolve(reference)


def main(argv: Sequence[str] | None = None) -> int:
    replace_unprintable()
    args = _parser().parse_args(argv)
    try:
        tls = Credentials(args.tls_dir).context() if args.receiver_url.startswith("https:") else None
        client = FleetClient(args.receiver_url, args.host_id, tls=tls, tries=3, timeout_s=15.0)
    except (CredentialsError, ValueError) as error:
        return _say(error, USAGE)
    cache_bytes = int(args.cache_gib * GIB)
    try:
        with closing(client):
            dataset_id = resolve(client, args.dataset)
            print(fetch(client.datasets, dataset_id, args.cache_dir, cache_bytes, args.within_s))
    except UnknownDataset as error:
        return _say(f"{error}; `cis490-jobs dataset push` brings one to the receiver", REFUSED)
    except (Unreachable, Unavailable) as error:
        return _say(error, UNREACHABLE)
    except (FetchError, ClientError) as error:
        return _say(error, REFUSED)
    except OSError as error:
        return _say(f"cannot keep the data set in {args.cache_dir}: {error.strerror or error}", REFUSED)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        PROGRAM,
        description="Fetch a data set to this host, where its worker looks for it.",
    )
    parser.add_argument("dataset", metavar="DATASET", help="name or id of the data set, or a prefix of the id")
    parser.add_argument("--receiver-url", required=True, metavar="URL", help="the receiver")
    parser.add_argument("--host-id", metavar="NAME", help="name of this host")
    parser.add_argument("--cache-dir", type=Path, required=True, metavar="DIR", help="the worker's folder of data sets")
    parser.add_argument(
        "--cache-gib", type=float, default=20.0, metavar="GIB", help="limit of all sets in --cache-dir (%(default)s)"
    )
    parser.add_argument("--tls-dir", type=Path, default=Path("tls"), metavar="DIR", help="folder of the certificate")
    parser.add_argument(
        "--within-s",
        type=float,
        default=86_400.0,
        metavar="S",
        help="stop after S seconds; the worker fetches the rest",
    )
    return parser


def _say(error: object, code: int) -> int:
    complain(f"dataset_fetch: {printable(error)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
