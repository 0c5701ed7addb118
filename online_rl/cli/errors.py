"""Failures of a command that its user can do something about."""

import sys


class CommandError(Exception):
    """The command cannot do what was asked. The message says why and what to do."""


_EXPECTED = {
    "online_rl.cli.errors": ("CommandError",),
    "online_rl.config": ("ConfigError",),
    "online_rl.demo.options": ("DemoError",),
    "online_rl.service.supervisor": ("StartError",),
    "online_rl.service.processes": ("AlreadyRunning",),
    "online_rl.service.database": ("SchemaTooNew",),
    "online_rl.registry": ("UnknownVersion", "IllegalTransition"),
    "online_rl.retention": ("Undeliverable",),
    "online_rl.base_model": ("UnusableModel",),
    "online_rl.pretraining": ("UnfitTrajectories",),
    "online_rl.dashboard.lineage": ("NothingKnown",),
    "online_rl.service.rights": ("NoSigningKey", "InvalidUser"),
    "feedback.database": ("DatabaseUnavailable",),
    "feedback.dead_letters": ("CannotRetry",),
}


def expected_errors() -> tuple[type[Exception], ...]:
    """The exception types to report without a traceback. Only of modules that are loaded: others cannot have raised."""
    return tuple(
        getattr(sys.modules[module], name)
        for module, names in _EXPECTED.items()
        if module in sys.modules
        for name in names
    )
