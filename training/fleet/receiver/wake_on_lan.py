"""Wake-on-LAN: broadcast the packet that wakes a sleeping machine through its network card.

The packet consists of six bytes of 255, then the card's hardware address sixteen times. There is no reply; success
shows when the machine asks for work. Routers do not forward the packet, so receiver and machine have to be on one
network.
"""

import socket
from collections.abc import Callable

PORT = 9  # discard; the card looks at the bytes alone
EVERYBODY = "255.255.255.255"


def packet(mac: str) -> bytes:
    """Return the packet that wakes the machine with a hardware address, written ``a0:b1:c2:d3:e4:f5``."""
    return b"\xff" * 6 + 16 * bytes.fromhex(mac.replace(":", ""))


def _broadcasting() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    return made


def send(mac: str, open_socket: Callable[[], socket.socket] = _broadcasting) -> None:
    """Broadcast the packet that wakes the machine with this hardware address. Raises OSError where this machine may not
    broadcast, or has no network."""
    with open_socket() as sender:
        sender.sendto(packet(mac), (EVERYBODY, PORT))
