"""A proxy in front of an S3 server that makes it slow, full, unreachable, silent or strict about credentials."""

import contextlib
import http.client
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any

from loopback import Handler

# Answers of S3, by fault: status, code, whether reads get it, too.
ANSWERS = {
    "full": (507, "InsufficientStorage", False),
    "quota": (403, "QuotaExceeded", False),
    "expired": (400, "ExpiredToken", True),
    "denied": (403, "AccessDenied", True),
    "busy": (503, "SlowDown", True),
}
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding"}


class FaultProxy:
    """A proxy with a fault that can be changed while clients use it; counts the requests."""

    def __init__(self, upstream: str, address: str) -> None:
        self.upstream = upstream
        self.host = address
        self.port = 0
        self.requests = 0
        self._fault = ""
        self._from = 0
        self.delay = 0.0
        self._server: Server | None = None

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    @contextlib.contextmanager
    def fault(self, name: str, *, after: int = 0, delay: float = 0.0) -> Iterator[None]:
        """During the block, the store has a fault, from the `after`-th request on.

        `name` is one of ANSWERS, "slow" (`delay` seconds a request), "silent" (no answer) or "refused" (no listener).
        """
        assert name in ANSWERS or name in ("slow", "silent", "refused")
        self._fault, self._from, self.delay = name, self.requests + after, delay
        if name == "refused":
            self.stop()
        try:
            yield
        finally:
            self._fault = ""
            if self._server is None:
                self.start()

    def current_fault(self) -> str:
        return self._fault if self.requests > self._from else ""

    def start(self) -> None:
        self._server = Server((self.host, self.port), self)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening, and break the connections."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self._server.break_connections()
        self._server = None


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], proxy: FaultProxy) -> None:
        self.proxy = proxy
        self._connections: set[socket.socket] = set()
        super().__init__(address, Forward)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def break_connections(self) -> None:
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients break connections


class Forward(Handler):
    """Forward a request as it came: its signature covers the path, the host and most headers."""

    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        proxy = self.server.proxy  # type: ignore[attr-defined]
        proxy.requests += 1
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = proxy.current_fault()
        if fault == "slow":
            time.sleep(proxy.delay)
        elif fault == "silent":
            while proxy.current_fault() == "silent":
                time.sleep(0.1)
            self.close_connection = True
            return
        elif fault in ANSWERS:
            status, code, also_reads = ANSWERS[fault]
            if also_reads or self.command not in ("GET", "HEAD", "DELETE"):
                self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())
                return
        upstream = urllib.parse.urlsplit(proxy.upstream)
        connection = http.client.HTTPConnection(upstream.hostname or "", upstream.port, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP_BY_HOP and name.lower() != "expect":
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            response = connection.getresponse()
            content = response.read()
            length = response.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_response_only(response.status, response.reason)
            for name, value in response.getheaders():
                if name.lower() not in HOP_BY_HOP and name.lower() != "content-length":
                    self.send_header(name, value)
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(content)
        finally:
            connection.close()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextlib.contextmanager
def running_proxy(upstream: str, address: str) -> Iterator[FaultProxy]:
    """Serve at a free port of `address` for the duration of the block."""
    proxy = FaultProxy(upstream, address)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
