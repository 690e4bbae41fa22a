"""Ports for the servers of tests."""

import contextlib
import random
import socket

HOST = "127.0.0.1"


def free_ports(count):
    """Ports without a listener, for which the port 10,000 above is free too, as weed needs it for gRPC.

    Both are below 32,768, where Linux begins to hand out the ports of outgoing connections: one of those could be
    taken before the server listens.
    """
    ports = []
    while len(ports) < count:
        port = random.randrange(10000, 22000)
        with contextlib.closing(socket.socket()) as probe, contextlib.closing(socket.socket()) as high:
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                high.bind((HOST, port + 10000))
                if port not in ports:
                    ports.append(port)
    return ports
