"""The demo from start to end: the service up, tastes one after the other, held-out judging, the report."""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

from online_rl.config import Settings, load_settings
from online_rl.demo.judge import Judge, JudgedAnswer, judge_apart
from online_rl.demo.options import DemoError, DemoOptions
from online_rl.demo.pacing import Pace, ServiceStatus
from online_rl.demo.progress import Progress, open_progress
from online_rl.demo.report import Report, describe_commit, describe_machine, find_recovery, summarise_phase, write_json
from online_rl.demo.service_process import ServiceProcess
from online_rl.demo.topics import HELD_OUT_TOPICS
from online_rl.demo.users import CONCURRENCY, Rating, ServiceClient, Users
from online_rl.demo.view import View, ViewState, print_report

log = logging.getLogger(__name__)

OPEN_BATCHES = 2
"""Batches of trajectories that may be open, see `online_rl.demo.pacing`."""
DRAIN_SECONDS = 60.0
"""At the end: how long the learner may go without progress before its rest is left alone."""


def run_demo(options: DemoOptions, console: Console | None = None) -> Report:
    """Run it all and return the report, written to `options.report` as well.

    Raises DemoError with a message for the user, ConfigError for unusable settings. Whatever happens, the service is
    stopped, unless it is to be kept.
    """
    started = time.monotonic()
    settings = load_settings()
    progress, resumed = open_progress(options)
    console = console or Console()
    run = DemoRun(options, settings, progress, resumed, started, console)
    with termination_as_interrupt():
        return asyncio.run(run.run())


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does, with the service stopped."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So a shell starts what it puts in the background; SIGTERM would then end nothing.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


class DemoRun:
    """One run. `progress` is what survives an interruption; everything else can be had again."""

    def __init__(
        self,
        options: DemoOptions,
        settings: Settings,
        progress: Progress,
        resumed: bool,
        started: float,
        console: Console,
    ) -> None:
        self.options = options
        self.settings = settings
        self.progress = progress
        self.resumed = resumed
        self.console = console
        self.started = started - progress.seconds
        self.folder = options.folder
        self.port = options.port or settings.serving.port
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = ServiceClient(self.url, choose_api_key(settings.api_keys))
        self.client.requests = progress.requests
        self.client.failed_requests = progress.failed_requests
        self.client.feedback_accepted = progress.feedback_accepted
        self.pace = Pace(limit=OPEN_BATCHES * settings.learner.batch_size)
        self.users = Users(self.client, self.pace, options.seed, options.answers)
        self.judge = Judge(Path(settings.model_path))
        self.state = ViewState(self.url, options.phase_names, options.trajectories, started=self.started)
        self.state.rewards = progress.rewards
        self.state.recoveries = [find_recovery(rewards) for rewards in progress.rewards]
        self.service = ServiceProcess(self.folder, self.port, self._assignments())

    def _assignments(self) -> list[str]:
        """The settings in which the demo's service differs from the user's own."""
        assignments = [f"learner.seed={self.options.seed}"]
        if self.options.learning_rate is not None:
            assignments.append(f"learner.learning_rate={self.options.learning_rate!r}")
        if self.settings.kafka.bootstrap_servers and not self.settings.kafka.topic_prefix:
            # Topics of their own: another run's events on the same cluster are not this run's.
            if self.progress.topic_prefix is None:
                self.progress.topic_prefix = f"demo-{self.options.seed}-{int(time.time())}."
            assignments.append(f'kafka.topic_prefix="{self.progress.topic_prefix}"')
        return assignments

    async def run(self) -> Report:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._save()
        try:
            with View(self.state, self.console) as view:
                async with self._ticking(view):
                    status = await self._run_phases()
        finally:
            self._save()
            await self.client.close()
            if not self.options.keep:
                self.console.print("stopping the service", highlight=False)
                self.service.stop()
        self.progress.finished = True
        self._save()
        report = self._build_report(status)
        if self.options.report is not None:
            write_json(self.options.report, report.model_dump(mode="json"))
        print_report(report, self.console)
        if self.options.keep:
            self.console.print(f"the service goes on at {self.url} (process {self.service.pid})", highlight=False)
        return report

    @asynccontextmanager
    async def _ticking(self, view: View) -> AsyncIterator[None]:
        """Keep the view fresh, and end the run where the service's process ends."""
        main = asyncio.current_task()
        assert main is not None
        died: list[DemoError] = []

        async def tick() -> None:
            while True:
                self.state.requests = self.client.requests
                self.state.failed_requests = self.client.failed_requests
                self.state.outstanding = self.pace.outstanding
                self.state.status = self.pace.status
                view.tick()
                try:
                    self.service.check_alive()
                except DemoError as error:
                    died.append(error)
                    main.cancel()
                    return
                await asyncio.sleep(0.5)

        task = asyncio.create_task(tick())
        try:
            yield
        except asyncio.CancelledError:
            if died:
                main.uncancel()
                raise died[0] from None
            raise
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run_phases(self) -> ServiceStatus:
        self.service.start()
        await self.service.wait_ready(self.client.is_ready, self._say)
        status = await self._read_status()
        if not self.resumed and (status.versions_published or status.trajectories_released):
            raise DemoError("the database holds another run's data; give the demo an empty one (DATABASE_URL)")
        self.pace.status = status
        self.pace.consumed_before = status.consumed
        self.pace.rated = status.backlog
        if not self.progress.base_answers:
            self._say("asking the base model the held-out questions")
            self.progress.base_answers = await self._ask_held_out(version=0)
            self._save()
        judging: list[asyncio.Task[None]] = []
        async with self.users.watching():
            for index in range(len(self.progress.quality), len(self.options.phase_names)):
                if index == len(self.progress.held_out):
                    await self._run_phase(index)
                    self._say("asking the held-out questions")
                    self.progress.held_out.append(await self._ask_held_out())
                    self._save()
                judging.append(asyncio.create_task(self._judge(index, judging[-1] if judging else None)))
            self._say("judging held-out answers; the learner finishes its last batches")
            await asyncio.gather(*judging, self._drain())
        return await self._read_status()

    async def _run_phase(self, index: int) -> None:
        name = self.options.phase_names[index]
        while len(self.progress.rewards) <= index:
            self.progress.rewards.append([])
            self.state.recoveries.append(None)
        rewards = self.progress.rewards[index]
        self.state.phase = index
        self._say(f"phase {index + 1} of {len(self.options.phase_names)}: the users like {name} answers")

        def rated(rating: Rating) -> None:
            rewards.append(rating.reward)
            self.state.version = max(self.state.version, rating.version)
            self.state.rated_at.append(time.monotonic())
            if self.state.recoveries[index] is None:
                self.state.recoveries[index] = find_recovery(rewards)
            self._save()

        await self.users.run_phase(index, name, len(rewards), self.options.trajectories, rated)

    async def _ask_held_out(self, version: int | None = None) -> list[JudgedAnswer]:
        """`held_out_answers` to each held-out question, none of them trained on. Raises DemoError where one fails."""
        gate = asyncio.Semaphore(CONCURRENCY)

        async def ask(topic: str) -> JudgedAnswer:
            for _ in range(10):
                async with gate:
                    answers = await self.client.ask(topic, user="judge", stream=False, train=False)
                if answers is not None:
                    answer = answers[0]
                    if version is not None and answer.version != version:
                        raise DemoError(f"version {answer.version} answered where version {version} was asked for")
                    return JudgedAnswer(topic, answer.text, answer.finish_reason == "stop")
                await asyncio.sleep(2.0)
            raise DemoError("a held-out question was not answered in 10 tries; see the service's logs")

        return list(await asyncio.gather(*map(ask, HELD_OUT_TOPICS * self.options.held_out_answers)))

    async def _judge(self, index: int, before: asyncio.Task[None] | None) -> None:
        """Score one phase's held-out answers and write the report so far; the phases are judged one by one."""
        if before is not None:
            await before
        parts = await judge_apart(self.judge, self.progress.held_out[index], self.progress.base_answers)
        self.progress.quality.append(parts)
        self._save()
        if self.options.report is not None:
            report = self._build_report(self.pace.status)
            write_json(self.options.report, report.model_dump(mode="json"))

    async def _drain(self) -> None:
        """Let the learner train on what was rated last; less than its smallest batch stays open."""
        since, consumed = time.monotonic(), self.pace.status.consumed
        while self.pace.outstanding >= self.settings.learner.min_batch:
            if self.pace.status.consumed != consumed:
                since, consumed = time.monotonic(), self.pace.status.consumed
            if time.monotonic() - since > DRAIN_SECONDS:
                log.warning("%d rated trajectories were not trained on in time", self.pace.outstanding)
                return
            await asyncio.sleep(0.5)

    async def _read_status(self) -> ServiceStatus:
        for _ in range(60):
            status = await self.client.read_status()
            if status is not None:
                return status
            await asyncio.sleep(1.0)
        raise DemoError("GET /admin/status was not answered for a minute; see the service's logs")

    def _build_report(self, status: ServiceStatus) -> Report:
        rate = self.options.learning_rate
        return Report(
            phases=[
                summarise_phase(name, rewards, parts)
                for name, rewards, parts in zip(
                    self.options.phase_names, self.progress.rewards, self.progress.quality, strict=False
                )
            ],
            versions_published=status.versions_published,
            requests=self.client.requests,
            failed_requests=self.client.failed_requests,
            feedback_accepted=self.client.feedback_accepted,
            trajectories_trained=status.trajectories_trained,
            drift_events=status.drift_events,
            kl_to_base=status.kl_to_base,
            mismatch_mean=status.mismatch_mean,
            mismatch_kl=status.mismatch_kl,
            seconds=round(time.monotonic() - self.started, 1),
            seed=self.options.seed,
            learning_rate=self.settings.learner.learning_rate if rate is None else rate,
            commit=describe_commit(),
            machine=describe_machine(),
        )

    def _say(self, activity: str) -> None:
        self.state.activity = activity

    def _save(self) -> None:
        self.progress.requests = self.client.requests
        self.progress.failed_requests = self.client.failed_requests
        self.progress.feedback_accepted = self.client.feedback_accepted
        self.progress.seconds = time.monotonic() - self.started
        self.progress.save(self.folder)


def choose_api_key(keys: dict[str, list[str]]) -> str | None:
    """A configured key that may do all that the demo does; None where no key is configured. Raises DemoError."""
    if not keys:
        return None
    for key, scopes in keys.items():
        if {"inference", "feedback", "admin"} <= set(scopes):
            return key
    raise DemoError("ONLINE_RL_API_KEYS: the demo needs one key with the scopes inference, feedback and admin")
