"""Ports for jobs that start a moment later."""

import random
import socket


def free_port():
    """A port of this machine that the kernel gives to nobody who asks for any: others of them stay free until the job takes it."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first, last = map(int, file.read().split())
    places = range(10000, first) if first > 12000 else range(last + 1, 65536)
    while True:
        port = random.SystemRandom().choice(places)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
