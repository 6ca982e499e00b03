"""Plain appends in a process of their own, one after the other on one connection, each timed.

It appends until standard input ends, and writes the moment and the seconds of each as JSON to standard output.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

from bench.events import event
from bench.wire import http_request

PAUSE = 0.002
_LONGEST = 60.0


def main() -> None:
    """Append until told to end: the arguments are a port and the path of a stream."""
    port, path = int(sys.argv[1]), sys.argv[2]
    request, timed, refused = http_request("POST", path, event(1)), [], 0
    with socket.create_connection(("127.0.0.1", port), timeout=_LONGEST) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not select.select([sys.stdin], [], [], PAUSE)[0]:
            began = time.monotonic()
            connection.sendall(request)
            answer = connection.recv(65536)
            timed.append((began, time.monotonic() - began))
            refused += not answer.startswith(b"HTTP/1.1 204")
    json.dump({"timed": timed, "refused": refused}, sys.stdout)


if __name__ == "__main__":
    main()
