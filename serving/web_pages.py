"""Requests that a web page of somebody else makes through a visitor's browser. Pure.

Without API keys whoever reaches the service may do everything, and only this machine reaches it; but a browser on this
machine runs the scripts of the whole web. A page can have its own name resolve to 127.0.0.1 (DNS rebinding) and is then
a page of the service's own origin to the browser; the Host header still says the name. And a page can post to another
origin without reading the answer; the Origin header says where it comes from.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

READING = frozenset({"GET", "HEAD", "OPTIONS"})
REMEDY = "Without API keys only this machine is served: {}, or set ONLINE_RL_API_KEYS."


def refuse_web_page(method: str, headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, str] | None:
    """(code, message) where a page of somebody else may be behind the request, None where none is.

    `headers` are those of ASGI. Clients that are not browsers send no Origin, and the Host that they were given.
    """
    for name, raw in headers:
        value = raw.decode("latin-1")
        if name == b"host" and not _is_this_machine(_host(f"//{value}")):
            use = "use http://127.0.0.1 or http://localhost"
            return "foreign_host", f"The Host header names {value[:80]!r}. {REMEDY.format(use)}"
        if name == b"origin" and method not in READING and not _is_this_machine(_host(value)):
            use = "call from a page on localhost"
            return "foreign_origin", f"The Origin header names {value[:80]!r}. {REMEDY.format(use)}"
    return None


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_this_machine(host: str | None) -> bool:
    """No address and no `localhost` can be rebound: only names are looked up in the DNS."""
    if host is None:
        return False
    if host.rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
