"""Who may ask the server anything: the one who has its token, by its own address, with bodies of bounded size."""

import hmac
import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MOST_JSON_BYTES = 64 * 1024
DRAWING = "/labels"  # the one kind of body that is larger, and is limited by the size of its case's image
POLICY = (
    "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self' blob: data:; "
    "connect-src 'self' blob: data:; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; "
    "font-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),  # no patient's image in the browser's cache
)


class Guard:
    """Answers 403 and 413 before a request reaches ``app``, and adds headers to every answer.

    ``/?token=…`` answers with the cookie and leads to ``/``; all else needs the cookie, or the header ``X-Token``.
    """

    def __init__(self, app: AsgiApp, *, token: str, host: str, port: int) -> None:
        self._app, self._token, self._host, self._port = app, token.encode(), host, port
        self._cookie = f"discoseg-{port}"  # cookies do not know ports, and there may be two servers

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI has it."""
        if scope["type"] != "http":
            assert scope["type"] == "lifespan", "there are no websockets"
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = {name.lower() for name, _ in message.get("headers", [])}
                message["headers"] = [*message.get("headers", []), *(pair for pair in HEADERS if pair[0] not in named)]
            await send(message)

        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._is_own(host):
            await _answer(send_with_headers, 403, {"detail": "this is not the address of this server"})
        elif headers.get("origin", f"http://{host}") != f"http://{host}":
            await _answer(send_with_headers, 403, {"detail": "another page may not ask"})
        elif scope["path"] == "/" and (given := parse_qs(scope["query_string"].decode("latin-1")).get("token")):
            await self._let_in(given[-1], send_with_headers)
        elif not self._is_token(headers.get("x-token") or self._from_cookie(headers.get("cookie", ""))):
            detail = "no token: open the address that 'discoseg annotate' printed"
            await _answer(send_with_headers, 403, {"detail": detail})
        elif not scope["path"].endswith(DRAWING) and announced(headers) > MOST_JSON_BYTES:
            await _answer(send_with_headers, 413, {"detail": f"the body exceeds {MOST_JSON_BYTES} bytes"})
        else:
            limited = receive if scope["path"].endswith(DRAWING) else limit(receive, MOST_JSON_BYTES)
            await self._app(scope, limited, send_with_headers)

    async def _let_in(self, given: str, send: Send) -> None:
        if not self._is_token(given):
            await _answer(send, 403, {"detail": "wrong token: open the address that 'discoseg annotate' printed"})
            return
        cookie = f"{self._cookie}={self._token.decode()}; Path=/; HttpOnly; SameSite=Strict"
        await _answer(send, 303, None, (b"location", b"/"), (b"set-cookie", cookie.encode()))

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token)

    def _from_cookie(self, header: str) -> str:
        pairs = (part.strip().partition("=") for part in header.split(";"))  # http.cookies stops at what it dislikes
        return next((value for name, _, value in pairs if name == self._cookie), "")

    def _is_own(self, header: str) -> bool:
        """Say whether a Host header is this server's: a page elsewhere may make its own name lead here."""
        name, _, port = header.rpartition(":")
        if port != str(self._port):
            return False
        name = name.strip("[]").lower()
        if name in (self._host.lower(), "localhost"):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return not is_loopback(self._host) and name in (socket.gethostname().lower(), socket.getfqdn().lower())
        return address.is_loopback or not is_loopback(self._host)


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def limit(receive: Receive, most: int) -> Receive:
    """Return a ``receive`` that ends in status 413 once the body has more than ``most`` bytes."""
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise HTTPException(413, f"the body exceeds {most} bytes")
        return message

    return receive_limited


def announced(headers: Mapping[str, str]) -> int:
    """Return how many bytes a request says its body has; 0 where it does not say."""
    length = headers.get("content-length", "0")
    return int(length[:20]) if length.isdecimal() else 0  # more digits than any size has


async def _answer(send: Send, status: int, content: dict[str, str] | None, *headers: tuple[bytes, bytes]) -> None:
    body = b"" if content is None else json.dumps(content).encode()
    own = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})
