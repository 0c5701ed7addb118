"""The deployer's process: brings candidates to the replicas and makes them live when every replica proved them."""

import logging
import threading

from feedback.database import UNAVAILABLE, open_database
from online_rl.config import Settings
from online_rl.registry import IllegalTransition, Registry
from online_rl.retention import keep_newest
from serving.rollout import Rollouts

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
RETRY_SECONDS = 2.0


def run_deployer(settings: Settings, stop: threading.Event) -> None:
    """Take steps until `stop` is set. Goes on when the database comes back; any other error ends the process."""
    engine = open_database(settings.database_url)
    registry = Registry(engine)
    rollouts = Rollouts(engine, registry)
    wait = 0.0
    while not stop.wait(wait):
        try:
            done = rollouts.step()
            if done is not None:
                keep_newest(registry, settings.swap.keep_versions)
        except UNAVAILABLE as error:
            logger.warning("the database is away: %s", error)
            wait = RETRY_SECONDS
            continue
        except IllegalTransition as error:  # an operator moved the same version at the same moment: look again
            logger.info("%s", error)
            done = None
        if done is not None:
            logger.info("%s", done)
        wait = 0.0 if done is not None else POLL_SECONDS
