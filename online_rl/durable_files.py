"""Files and folders that are either complete on disk or not there, also after a power cut."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


class Busy(Exception):
    """Another process holds the folder's lock."""


def hash_file(path: Path) -> str:
    """SHA-256, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_folder(folder: Path) -> dict[str, str]:
    """Path relative to `folder` → SHA-256, of every file in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hash_file(path) for path in files}


def sync(path: Path) -> None:
    """Wait until `path` (a file, or a folder's list of names) is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until everything in `folder` is on disk."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raise what safetensors says of a full or failing disk as the OSError that it is."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold `folder` within the block, among all who ask for it here. The kernel lets go however a process ends.

    Raises Busy where it is held by another and `wait` is false, and OSError.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise Busy(f"{folder} is in use by another process") from error
        yield
    finally:
        os.close(descriptor)


def start_folder(target: Path) -> Path:
    """An empty folder beside `target` to build it in; what an interrupted try left there is removed."""
    draft = _draft_of(target)
    if draft.exists():
        shutil.rmtree(draft)
    draft.mkdir(parents=True)
    return draft


def discard_folder(target: Path) -> None:
    """Remove what an interrupted try to build `target` left: half a folder must not keep a full disk full."""
    shutil.rmtree(_draft_of(target), ignore_errors=True)


def _draft_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.draft")


def finish_folder(draft: Path, target: Path) -> None:
    """Make the finished `draft` appear as `target` at once. A `target` that is there already is replaced."""
    sync_folder(draft)
    if target.exists():
        shutil.rmtree(target)
    draft.rename(target)
    sync(target.parent)
