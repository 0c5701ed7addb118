"""What every Ray worker process does first: keep its sockets on loopback, and log to the service's folder.

Ray Serve 2.60 gives each replica a gRPC server for calls between deployments, bound to ``[::]`` whatever the node's
address is, and it unpickles what it receives: whoever reaches it can run code. On a local cluster nobody else needs it.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_EVERYWHERE = ("[::]:", "0.0.0.0:")


def loopback_only(address: str) -> str:
    """`address` (``host:port``) with a host that means every interface replaced by 127.0.0.1."""
    for prefix in _EVERYWHERE:
        if address.startswith(prefix):
            return "127.0.0.1:" + address.removeprefix(prefix)
    return address


def bind_grpc_to_loopback() -> None:
    from ray._common import tls_utils

    bind = tls_utils.add_port_to_grpc_server
    tls_utils.add_port_to_grpc_server = lambda server, address: bind(server, loopback_only(address))


def bind_haproxy_to_loopback() -> None:
    """Its statistics and metrics pages listen everywhere, whatever the host of the frontend is."""
    from ray.serve._private import haproxy

    module: Any = haproxy
    template: str = module.HAPROXY_CONFIG_TEMPLATE
    for everywhere in ("bind :{{ config.metrics_port }}", "bind *:{{ config.stats_port }}"):
        if everywhere not in template:
            raise RuntimeError(f"this version of Ray Serve has no {everywhere!r} to bind to loopback")
        template = template.replace(everywhere, everywhere.replace(" *:", " :").replace(" :", " 127.0.0.1:"))
    module.HAPROXY_CONFIG_TEMPLATE = template


def log_to_file(folder: Path, name: str) -> None:
    """Everything that this process logs also goes to ``<name>.log`` in `folder`."""
    handler = logging.FileHandler(folder / f"{name}.log", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(process)d %(name)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    # Each request and each connection would be a line.
    for chatty in ("httpx", "httpcore", "kafka", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def worker_setup(logs: Path, *, local: bool, haproxy: bool) -> Callable[[], None]:
    """The function that Ray runs in each worker process of a local (`local`) or a shared cluster."""

    def set_up() -> None:
        if local:
            bind_grpc_to_loopback()
        if local and haproxy:
            bind_haproxy_to_loopback()
        if os.access(logs, os.W_OK):
            log_to_file(logs, "workers")

    return set_up
