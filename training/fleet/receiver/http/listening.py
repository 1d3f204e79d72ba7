"""The receiver's listening sockets: loopback without TLS, any address with TLS, or a proxy's Unix socket."""

import argparse
import errno
import ipaddress
import os
import socket
from pathlib import Path

from training.clock import Clock
from training.fleet.receiver.security.authority import AuthorityError
from training.fleet.receiver.security.tls import Security, own_names


class StartError(Exception):
    """The receiver cannot start. The text is one sentence; ``code`` is the program's exit code."""

    def __init__(self, sentence: str, code: int = 1) -> None:
        super().__init__(sentence)
        self.code = code


def secure(args: argparse.Namespace, clock: Clock) -> Security | None:
    """Open the receiver's TLS if ``--tls`` or ``--proxy-socket`` is given, or the folder of certificates holds an
    authority; else return None. Raises StartError if the certificates or a public name cannot be used, or if without
    TLS the address is not loopback's."""
    proxied = args.proxy_socket is not None
    folder = args.tls_dir or args.db.parent / "tls"
    if not (args.tls or proxied or _holds_authority(folder)):
        _check_loopback(args.host)
        return None
    if proxied and args.public_name and all(_is_address(name) for name in args.public_name):
        raise StartError(
            f"behind a proxy {args.public_name[0]} cannot be the receiver's name: for an address a TLS client sends no "
            "server name, and Caddy answers a bare 421; give the machine a name (DNS, or /etc/hosts on every host) and "
            "put that behind --public-name",
            2,
        )
    try:
        names = own_names(args.host, args.public_name)
        return Security(folder, names, clock, for_proxy=proxied)
    except (AuthorityError, ValueError) as error:
        raise StartError(str(error), 2) from error
    except OSError as error:
        raise StartError(
            f"cannot keep certificates in {folder}: {error.strerror}; choose another folder with --tls-dir", 2
        ) from error


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _holds_authority(folder: Path) -> bool:
    """Return True if the folder holds an authority's key or certificate; False also where this user may not look into
    it."""
    try:
        return (folder / "ca.pem").exists() or (folder / "ca.key").exists()
    except OSError:
        return False


def _check_loopback(host: str) -> None:
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise StartError(f"{host!r} is not an address; try --host 127.0.0.1", 2) from None
    if not loopback:
        raise StartError(
            f"refusing to listen on {host} without TLS and certificates: anybody who reaches that address could "
            "take jobs and upload models; add --tls, then enroll hosts with `cis490-jobs enroll HOST`, or use "
            "--host 127.0.0.1 and an SSH tunnel",
            2,
        )


def listener(args: argparse.Namespace) -> socket.socket:
    """Open the socket for requests. Raises StartError."""
    if args.proxy_socket is not None:
        return _listen_for_proxy(args.proxy_socket)
    return _listen(args.host, args.port)


def _listen_for_proxy(path: Path) -> socket.socket:
    """Open a Unix socket that only this user and the user's group, which includes the proxy, may use. Raises
    StartError."""
    if not hasattr(socket, "AF_UNIX"):
        raise StartError("this system has no Unix sockets; use --tls instead of a proxy", 2)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and _abandoned(path):
            path.unlink()
        before = os.umask(0o117)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise StartError(f"cannot listen on {path}: {error.strerror}; choose another --proxy-socket") from error
    return listener


def _abandoned(path: Path) -> bool:
    """Return True if a killed receiver left this socket, so that nothing answers on it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


def address(listener: socket.socket, security: Security | None) -> str:
    """Return the address on which the receiver listens, for the log."""
    name = listener.getsockname()
    if isinstance(name, str):
        return f"{name} (for a proxy)"
    host, port = name[:2]
    scheme = "http" if security is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def public_url(args: argparse.Namespace, listener: socket.socket, security: Security | None) -> str:
    """Return the receiver's URL that new machines should use; empty without TLS."""
    if security is None:
        return ""
    host = security.names[0]
    port = args.port if args.proxy_socket is not None else listener.getsockname()[1]
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]  # Python appends the address again
        remedy = (
            "is a receiver running already? choose another one with --port"
            if error.errno == errno.EADDRINUSE
            else "--host takes an address of this machine (0.0.0.0 for all), --port a number from 1024 on"
        )
        raise StartError(f"cannot listen on {host} port {port}: {why}; {remedy}") from error
