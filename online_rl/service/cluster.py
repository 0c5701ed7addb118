"""The Ray cluster and the Serve applications: start, watch, shut down. `ray` is imported late: it takes a second."""

import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from online_rl.config import Settings
from online_rl.service.broker import free_port
from online_rl.service.worker_setup import worker_setup

NAMESPACE = "online_rl"
POLICY = "policy"
ROUTES = {POLICY: "/v1", "feedback": "/v1/feedback", "inferences": "/v1/inferences", "operations": "/"}
"""Serve application → route prefix; the longest prefix wins."""


class ClusterError(Exception):
    """Ray or Serve did not start. The message says why, as far as it can be known."""


def prepare_environment(settings: Settings) -> None:
    """Environment variables that Ray reads once, when it is imported or started; its processes inherit them."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # A part that dies takes what it started along: an engine without its replica would hold gigabytes.
    os.environ["RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper"] = "true"  # noqa: SIM112
    # Ray would start `logical_cpus` Python processes at once, while the engine needs the cores to load.
    os.environ["RAY_enable_worker_prestart"] = "0"  # noqa: SIM112
    os.environ["RAY_prestart_worker_first_driver"] = "0"  # noqa: SIM112
    # Serve's controller looks at everything that often; at its default of 0.1 s this took 6% of a core (AMD EPYC).
    os.environ.setdefault("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "0.5")
    # Ray runs its workers at niceness 15; here only the learner gives way to others.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    if settings.cluster.address is None:
        # Makes 127.0.0.1 the node's address, and Ray's own servers then listen on nothing else (docs/adr).
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    if settings.serving.haproxy:
        # HAProxy takes a socket path of 97 characters, and Ray puts a node id of 56 into it.
        folder = Path(tempfile.gettempdir()) / f"orl-{settings.serving.port}"
        os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
        os.environ["RAY_SERVE_HAPROXY_METRICS_ENABLED"] = "0"
        # The fixed ports would be a second service's too.
        os.environ["RAY_SERVE_HAPROXY_METRICS_PORT"] = str(free_port())
        os.environ["RAY_SERVE_HAPROXY_STATS_PORT"] = str(free_port())
        # Replicas would wait 30 s for other machines' proxies to hear that they are going.
        os.environ["RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"] = "1"
        os.environ["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"] = str(folder / "haproxy.cfg")
        os.environ["RAY_SERVE_HAPROXY_SOCKET_PATH"] = str(folder / "admin.sock")
        os.environ["RAY_SERVE_HAPROXY_SERVER_STATE_BASE"] = str(folder)
        os.environ["RAY_SERVE_HAPROXY_SERVER_STATE_FILE"] = str(folder / "server-state")


def start_ray(settings: Settings, logs: Path) -> None:
    """Connect to the cluster that the settings name, or start a local one. Raises ClusterError."""
    import ray

    local = settings.cluster.address is None
    options: dict[str, Any] = {
        "namespace": NAMESPACE,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "runtime_env": {"worker_process_setup_hook": worker_setup(logs, local=local, haproxy=settings.serving.haproxy)},
    }
    if local:
        options |= {
            # "local" so that a RAY_ADDRESS left in the environment does not turn this into a cluster of others.
            "address": "local",
            "num_cpus": settings.cluster.logical_cpus,
            "object_store_memory": settings.cluster.object_store_mib * 2**20,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            # Ray puts sockets there, whose paths may have 107 characters: a data_dir can be deeper than that.
            "_temp_dir": str(Path(tempfile.gettempdir()) / f"online-rl-ray-{os.getuid()}"),
        }
    else:
        options["address"] = settings.cluster.address
    # ray.init puts its own SIGTERM handler over the one that stops the service in order.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        context: Any = ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
        where = f"the Ray cluster {settings.cluster.address}" if settings.cluster.address else "a local Ray cluster"
        raise ClusterError(f"{where} cannot be used: {error}") from error
    for number, handler in handlers.items():
        signal.signal(number, handler)
    session = Path(context.address_info["session_dir"])
    link = logs / "ray"
    link.unlink(missing_ok=True)
    link.symlink_to(session / "logs")


def start_serve(settings: Settings) -> None:
    """Start Serve's controller and its HTTP proxy on the configured address."""
    from ray import serve
    from ray.serve.config import HTTPOptions

    logging.getLogger("ray.serve").setLevel(logging.WARNING)

    serve.start(
        proxy_location="HeadOnly" if settings.cluster.address is None else "EveryNode",
        http_options=HTTPOptions(host=settings.serving.host, port=settings.serving.port),
        logging_config={"enable_access_log": False},
    )


def deploy(applications: Mapping[str, Any]) -> None:
    """Deploy Serve applications (name → bound application) under `ROUTES`, without waiting for them to run."""
    from ray import serve

    serve.run_many(
        [
            serve.RunTarget(target=application, name=name, route_prefix=ROUTES[name])
            for name, application in applications.items()
        ],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def application_states() -> dict[str, tuple[str, str]]:
    """Serve application → (state such as ``RUNNING`` or ``DEPLOY_FAILED``, message)."""
    from ray import serve

    return {
        name: (application.status.value, application.message)
        for name, application in serve.status().applications.items()
    }


def wait_running(names: set[str], ready: Callable[[str], None], stopped: Callable[[], bool], seconds: float) -> None:
    """Call `ready` with each application as it gets to run. Raises ClusterError where one fails or takes too long."""
    deadline = time.monotonic() + seconds
    waiting = set(names)
    while waiting and not stopped():
        for name, (state, message) in application_states().items():
            if name not in waiting:
                continue
            if state == "RUNNING":
                waiting.discard(name)
                ready(name)
            elif state in {"DEPLOY_FAILED", "UNHEALTHY"}:
                raise ClusterError(f"{name} does not start: {_last_lines(message)}")
        if time.monotonic() > deadline:
            raise ClusterError(f"{', '.join(sorted(waiting))} did not start within {seconds:.0f} s")
        time.sleep(0.5)


def _last_lines(message: str, count: int = 4) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " | ".join(lines[-count:])[-600:]


def stop_policy() -> None:
    """Let the policy's replicas finish what they hold and send what they captured. Returns once they have ended."""
    import ray

    if not ray.is_initialized():
        return
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    try:
        serve.delete(POLICY)
    except (RayError, RayServeException, TimeoutError, RuntimeError) as error:
        logging.getLogger(__name__).warning("the policy did not shut down in order: %s", type(error).__name__)


def stop_ray() -> None:
    """End everything that Ray started."""
    import ray

    if ray.is_initialized():
        ray.shutdown()
