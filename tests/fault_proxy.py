"""A socket in front of a PostgreSQL server that knows where messages begin, and hurts a chosen one of them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import sqlalchemy as sa

# cut: the connection ends in front of the message. down: and nobody gets through until `heal`. drop: the message and
# what follows it are lost that way, while the other way stays open for a moment. delay: the message comes late.
Kind = Literal["cut", "down", "drop", "delay"]
KINDS: tuple[Kind, ...] = ("cut", "down", "drop", "delay")
LATE = 0.02  # seconds


@dataclass(frozen=True)
class Fault:
    """What happens to the message `at`, counted from 1 in the order in which the proxy sees both directions."""

    kind: Kind
    at: int


class FaultProxy:
    """The proxy; `url` leads through it. Without a fault it passes everything on."""

    def __init__(self, url: str, folder: Path) -> None:
        parsed = sa.make_url(url)
        host, port = str(parsed.query.get("host") or parsed.host), parsed.query.get("port") or parsed.port
        self._server = f"{host}/.s.PGSQL.{port or 5432}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen(16)
        query = {"host": str(folder), "port": "5432"}
        self.url = parsed.set(host=None, port=None, query=query).render_as_string(hide_password=False)
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        self.seen = 0
        self._links: list[_Link] = []
        self.fired = False
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, fault: Fault) -> None:
        """Count anew, and hurt that message."""
        with self._lock:
            self._fault, self.seen, self.fired = fault, 0, False

    def heal(self) -> None:
        """Pass everything on again."""
        with self._lock:
            self._fault = None

    def close(self) -> None:
        """End all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._links:
            link.close()

    def next_action(self) -> Kind | None:
        """What happens to the message that has just come."""
        with self._lock:
            self.seen += 1
            fault = self._fault
            if fault is None or self.seen < fault.at:
                return None
            if self.seen == fault.at:
                self.fired = True
                return fault.kind
            return "cut" if fault.kind == "down" else None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                self._links.append(_Link(self, client, server))


class _Link:
    """One client and its connection to the server, with a thread for each direction."""

    def __init__(self, proxy: FaultProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._sockets = (client, server)
        for source, target, untyped in ((client, server, True), (server, client, False)):
            threading.Thread(target=self._pump, args=(source, target, untyped), daemon=True).start()

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):  # the other thread was first
                each.shutdown(socket.SHUT_RDWR)

    def _pump(self, source: socket.socket, target: socket.socket, untyped: bool) -> None:
        with contextlib.suppress(OSError), source, source.makefile("rb") as reader:
            for message in _messages(reader, untyped):
                action = self._proxy.next_action()
                if action in ("cut", "down"):
                    break
                if action == "drop":
                    time.sleep(LATE)
                    break
                if action == "delay":
                    time.sleep(LATE)
                target.sendall(message)
        self.close()


def _messages(reader: BinaryIO, untyped: bool) -> Iterator[bytes]:
    """The messages of one direction: a type byte, and a length that counts itself. A client's first has no type."""
    if untyped and (length := reader.read(4)):
        yield length + reader.read(int.from_bytes(length, "big") - 4)
    while head := reader.read(5):
        yield head + reader.read(int.from_bytes(head[1:], "big") - 4)


@contextmanager
def fault_proxy(url: str, folder: Path) -> Iterator[FaultProxy]:
    """A proxy in front of the server of `url`, listening in `folder`."""
    proxy = FaultProxy(url, folder)
    try:
        yield proxy
    finally:
        proxy.close()
