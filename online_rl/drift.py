"""Changes of taste and of the prompt mix: found in the stream of trajectories, and how long recovery takes.

::

    reward, residual, metrics of all traffic ─► fall? ─► the mix explains it ──────────► prompt_mix
                                                    ├─► some cohorts clearly stayed ──► wait: it is those cohorts' own
                                                    └─► else ─────────────────────────► taste, in all traffic
    reward, metrics of each cohort ───────────► fall that the rest does not share ────► taste, in that cohort
    shares of the cohorts ────────────────────► another mix ──────────────────────────► prompt_mix

Learning itself moves rewards, so only falls count: of the reward, of each metric, and of the residual r − V (how much
worse than expected an answer was rated), each within a window of recent values (`online_rl.change_points`). A policy
that trains wanders too, without its users' doing, and a fall must stand out against that (`drift.wander`).

False alarms: S tests look at each trajectory, and a threshold of √(t² + 2·ln S) standard errors makes each of them S
times rarer (the tail falls as exp(−t²/2)). So what `drift.threshold` bounds is the rate of false alarms over all
tests together for each trajectory, however many cohorts there are and however they depend on each other.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from pydantic import BaseModel, ConfigDict

from online_rl.attribution import Attribution, attribute
from online_rl.change_points import WINDOW, Fall, MixChange, find_fall, find_mix_change
from online_rl.cohort_stream import CohortStream, Entry, find_cohort_fall, level
from online_rl.cohorts import PROMPT, find_active, name_cohort
from online_rl.detectors import make_detector
from online_rl.drift_events import METRIC, MIX, RESIDUAL, REWARD, OpenShift, Recovery, Shift
from online_rl.prompt_clusters import PromptClusters
from online_rl.settings import DriftSettings

RECOVERED = 0.9
"""Share of the level before a shift at which it counts as recovered."""
MIX_STEP = 4
"""Trajectories from one look at the mix to the next; it costs more than the others and is in no hurry."""
MAX_DIMENSIONS = 12
MAX_METRICS = 8


class DriftState(BaseModel):
    """All that the monitor needs to go on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seen: int = 0
    rewards: tuple[float, ...] = ()
    """The last ones, of which `fresh` came after the last shift."""
    residuals: tuple[float | None, ...] = ()
    times: tuple[float, ...] = ()
    fresh: int = 0
    open_shift: OpenShift | None = None
    labels: dict[str, tuple[str, ...]] = {}
    """Dimension → the cohort of each of `rewards`, empty where unknown."""
    fresh_mix: int = 0
    """Labels that came after the last change of the mix."""
    mix_changed: int | None = None
    """Rewards seen when the mix changed last."""
    totals: dict[str, tuple[int, float]] = {}
    """Reward and each metric → how many there were, and their sum."""
    streams: tuple[CohortStream, ...] = ()
    """Of cohorts, and of metrics in all traffic; seen last comes last."""
    prompts: PromptClusters = PromptClusters()


class DriftMonitor:
    """Fed one trajectory at a time, in the order of training; says what that revealed."""

    def __init__(self, settings: DriftSettings, state: DriftState | None = None) -> None:
        """Raises DetectorMissing."""
        state = state or DriftState()
        self._settings = settings
        self._detector = make_detector(settings.detector, settings.wander)
        self._seen = state.seen
        self._rewards = list(state.rewards)
        self._residuals = list(state.residuals)
        self._times = list(state.times)
        self._fresh = state.fresh
        self._open = state.open_shift
        self._labels = {name: list(found) for name, found in state.labels.items()}
        self._fresh_mix = state.fresh_mix
        self._mix_changed = state.mix_changed
        self._totals = dict(state.totals)
        self._streams = {(one.stream, one.cohort): one for one in state.streams}
        self._prompts = state.prompts

    @property
    def state(self) -> DriftState:
        return DriftState(
            seen=self._seen,
            rewards=tuple(self._rewards),
            residuals=tuple(self._residuals),
            times=tuple(self._times),
            fresh=self._fresh,
            open_shift=self._open,
            labels={name: tuple(found) for name, found in self._labels.items()},
            fresh_mix=self._fresh_mix,
            mix_changed=self._mix_changed,
            totals=self._totals,
            streams=tuple(self._streams.values()),
            prompts=self._prompts,
        )

    @property
    def rewards_since_shift(self) -> list[float]:
        """The rewards after the one that revealed the last shift; the newest `WINDOW` of them."""
        return self._rewards[len(self._rewards) - self._fresh :]

    @property
    def lowest_reward(self) -> float:
        """Of the rewards that are remembered. Raises ValueError where there is none."""
        return min(self._rewards)

    def observe(
        self,
        reward: float,
        residual: float | None,
        at: float,
        *,
        metrics: Mapping[str, float] | None = None,
        cohorts: Mapping[str, str] | None = None,
        prompt: Sequence[int] = (),
    ) -> list[Shift | Recovery]:
        """One rated trajectory: its reward, reward minus the value expected (None while the value model warms up),
        when it was rated (Unix seconds), what its reward is made of, its cohorts (dimension → label), and the tokens of
        its prompt."""
        if not self._settings.enabled:
            return []
        metrics = metrics if metrics is not None and len(metrics) > 1 else {}
        self._remember(reward, residual, at, {**(cohorts or {}), PROMPT: self._prompts.label(prompt)})
        active = find_active(self._labels)
        values = {REWARD: reward} | {METRIC + name: metrics[name] for name in sorted(metrics)[:MAX_METRICS]}
        own = [name_cohort(name, self._labels[name][-1]) for name in active if self._labels[name][-1]]
        # The reward and each metric in all traffic and in each dimension, the residual, the mix of each dimension.
        tests = len(values) * (1 + len(active)) + (residual is not None) + len(active)
        threshold = math.sqrt(self._settings.threshold**2 + 2.0 * math.log(tests))
        found = [self._find_shift(at, threshold, active), self._find_mix(at, threshold, active)]
        found += [self._recover_all(at)]
        for stream, value in values.items():
            found += self._observe_streams(stream, value, at, own, threshold)
        self._learn_prompts(prompt)
        return [event for event in found if event is not None]

    def _remember(self, reward: float, residual: float | None, at: float, labels: Mapping[str, str]) -> None:
        keep = max(WINDOW, self._settings.recovery_window)
        self._seen += 1
        self._fresh = min(self._fresh + 1, WINDOW)
        self._fresh_mix = min(self._fresh_mix + 1, WINDOW)
        known = len(self._rewards)
        for name, label in labels.items():
            if label and name not in self._labels and len(self._labels) < MAX_DIMENSIONS:
                self._labels[name] = [""] * known
        self._rewards = [*self._rewards[-keep + 1 :], reward]
        self._residuals = [*self._residuals[-keep + 1 :], residual]
        self._times = [*self._times[-keep + 1 :], at]
        kept = {name: [*found[-keep + 1 :], labels.get(name, "")] for name, found in self._labels.items()}
        self._labels = {name: found for name, found in kept.items() if any(found)}

    def _find_shift(self, at: float, threshold: float, active: Sequence[str]) -> Shift | None:
        """In the reward of all traffic, or in its residual."""
        rewards = self.rewards_since_shift
        # A reward that is no lower than the others makes no fall likelier.
        if self._fresh < self._settings.min_samples or rewards[-1] > fmean(rewards):
            return None
        stream, fall = REWARD, self._detector(rewards, threshold)
        if fall is None or fall.before - fall.after < self._settings.delta:
            stream, fall = RESIDUAL, self._find_residual_fall(rewards, threshold)
            if fall is None:
                return None
        labels = {name: self._labels[name][-len(rewards) :] for name in active}
        cause, since = self._attribute(rewards, labels, fall.since)
        if cause.is_of_some and not cause.is_mix:
            return None
        shift = self._describe(stream, fall, at, threshold, cause)
        if cause.is_mix:
            # What was earned with the old mix is nothing to compare with.
            self._fresh = since
            return self._restart_mix(shift, since)
        index = self._seen - fall.since
        self._open = OpenShift(
            stream=stream,
            trajectories=self._seen,
            before=shift.before,
            changed_index=index,
            changed_at=shift.evidence["changed_at"],
        )
        self._fresh = 0
        # What came before is explained, in every cohort and metric.
        self._restart_streams(shift.evidence["changed_at"])
        return shift

    def _attribute(
        self, rewards: Sequence[float], labels: Mapping[str, Sequence[str]], since: int
    ) -> tuple[Attribution, int]:
        """Of the fall, and how long it lasts. Where the mix changed in the same window, the fall may lie behind that by
        chance; then it is attributed from there."""
        cause = attribute(rewards, len(rewards) - since, labels)
        mix_since = 0 if self._mix_changed is None else self._seen - self._mix_changed
        if cause.is_mix or not 0 < mix_since < len(rewards):
            return cause, since
        other = attribute(rewards, len(rewards) - mix_since, labels)
        return (other, mix_since) if other.is_mix else (cause, since)

    def _find_residual_fall(self, rewards: Sequence[float], threshold: float) -> Fall | None:
        residuals = [residual for residual in self._residuals[-self._fresh :] if residual is not None]
        fall = self._detector(residuals, threshold)
        # A value model that learns to expect more lowers the residual too, but not below zero.
        if fall is None or fall.before - fall.after < self._settings.delta or fall.after > -self._settings.delta:
            return None
        # Or the values learn to expect more in the same window: the most likely fall of the residual is then not
        # where users changed their mind. That is where the reward fell, if less clearly.
        seen = find_fall(rewards)
        if seen is None or seen.before - seen.after < self._settings.delta or 1.5 * seen.standard_errors < threshold:
            return None
        return replace(fall, since=seen.since)

    def _describe(self, stream: str, fall: Fall, at: float, threshold: float, cause: Attribution) -> Shift:
        """In terms of the reward, whichever stream showed it."""
        split = len(self._rewards) - fall.since
        return Shift(
            stream=stream,
            cause="prompt_mix" if cause.is_mix else "taste",
            trajectories=self._seen,
            detected_at=at,
            before=level(self._rewards, split, self._settings.recovery_window),
            after=fmean(self._rewards[split:]),
            evidence={
                "delay": float(fall.since),
                "changed_at": self._times[split],
                "standard_errors": fall.standard_errors,
                "threshold": threshold,
                "stream_before": fall.before,
                "stream_after": fall.after,
                "mix_share": cause.mix_share,
                "stayed_share": cause.stayed_share,
            },
        )

    def _find_mix(self, at: float, threshold: float, active: Sequence[str]) -> Shift | None:
        if self._seen % MIX_STEP or self._fresh_mix < self._settings.min_samples:
            return None
        best: tuple[MixChange, str, int] | None = None
        for name in active:
            labels = self._labels[name][-self._fresh_mix :]
            known = [index for index, label in enumerate(labels) if label]
            change = find_mix_change([labels[index] for index in known])
            if (
                change is not None
                and change.standard_errors >= threshold
                and change.distance >= self._settings.mix_distance
                and (best is None or change.standard_errors > best[0].standard_errors)
            ):
                best = change, name, len(labels) - known[-change.since]
        if best is None:
            return None
        change, name, since = best
        split = len(self._rewards) - since
        shift = Shift(
            stream=MIX,
            cohort=name_cohort(name, change.label or "(rare)"),
            cause="prompt_mix",
            trajectories=self._seen,
            detected_at=at,
            before=level(self._rewards, split, self._settings.recovery_window),
            after=fmean(self._rewards[split:]),
            evidence={
                "delay": float(since),
                "changed_at": self._times[split],
                "standard_errors": change.standard_errors,
                "threshold": threshold,
                "share_before": change.share_before,
                "share_after": change.share_after,
                "distance": change.distance,
            },
        )
        return self._restart_mix(shift, since)

    def _restart_mix(self, shift: Shift, since: int) -> Shift | None:
        """Compare with what came since from here on. None where this very change of the mix was reported before."""
        changed = self._seen - since
        before, self._mix_changed = self._mix_changed, changed
        self._fresh_mix = 0
        self._prompts = self._prompts.anew()
        # What the cohorts earned before was earned with the old mix.
        self._restart_streams(shift.evidence["changed_at"])
        reported = shift.stream != MIX and before is not None and changed - before < WINDOW // 2
        return None if reported else shift

    def _restart_streams(self, at: float) -> None:
        self._streams = {name: one.since(at) for name, one in self._streams.items()}

    def _recover_all(self, at: float) -> Recovery | None:
        recovery = find_recovery(self._open, self._rewards, self._seen, at, self._settings.recovery_window)
        if recovery is not None:
            self._open = None
        return recovery

    def _observe_streams(
        self, stream: str, value: float, at: float, own: Sequence[str], threshold: float
    ) -> list[Shift | Recovery]:
        """One more value of the reward or of a metric: in its cohorts, and of a metric in all traffic."""
        count, total = self._totals.get(stream, (0, 0.0))
        self._totals[stream] = count + 1, total + value
        entry = Entry(value, at, count + 1, total + value)
        events: list[Shift | Recovery] = []
        for cohort in [*own, *([] if stream == REWARD else [""])]:
            known = self._streams.pop((stream, cohort), CohortStream(stream=stream, cohort=cohort)).add(entry)
            known, shift = self._find_stream_shift(known, at, threshold)
            recovery = find_recovery(known.open_shift, known.values, known.seen, at, self._settings.recovery_window)
            if recovery is not None:
                known = known.model_copy(update={"open_shift": None})
            events += [event for event in (shift, recovery) if event is not None]
            self._streams[stream, cohort] = known
        for name in list(self._streams)[: max(0, len(self._streams) - self._settings.max_cohorts - MAX_METRICS)]:
            del self._streams[name]
        return events

    def _find_stream_shift(self, known: CohortStream, at: float, threshold: float) -> tuple[CohortStream, Shift | None]:
        values = known.values
        if len(values) < self._settings.min_samples or values[-1] > fmean(values):
            return known, None
        rest: dict[str, float] = {}
        if known.cohort:
            cohort_fall = find_cohort_fall(known.entries, threshold, self._detector)
            fall = None if cohort_fall is None else cohort_fall.fall
            if cohort_fall is not None:
                rest = {"rest_before": cohort_fall.rest_before, "rest_after": cohort_fall.rest_after}
        else:
            fall = self._detector(values, threshold)
        if fall is None or fall.before - fall.after < self._settings.delta:
            return known, None
        split = len(values) - fall.since
        changed_at = known.entries[split].at
        shift = Shift(
            stream=known.stream,
            cohort=known.cohort,
            trajectories=self._seen,
            detected_at=at,
            before=level(values, split, self._settings.recovery_window),
            after=fall.after,
            evidence={
                "delay": float(fall.since),
                "changed_at": changed_at,
                "standard_errors": fall.standard_errors,
                "threshold": threshold,
                "stream_before": fall.before,
                "stream_after": fall.after,
                **rest,
            },
        )
        opened = OpenShift(
            stream=known.stream,
            cohort=known.cohort,
            trajectories=self._seen,
            before=shift.before,
            changed_index=known.seen - fall.since,
            changed_at=changed_at,
        )
        return known.model_copy(update={"open_shift": opened, "entries": known.entries[split:]}), shift

    def _learn_prompts(self, prompt: Sequence[int]) -> None:
        generation = self._prompts.generation
        self._prompts = self._prompts.learn(prompt, self._settings.prompt_clusters)
        if self._prompts.generation != generation:
            # Of other clusters, these labels say nothing about the mix.
            self._labels.pop(PROMPT, None)


def find_recovery(
    shift: OpenShift | None, values: Sequence[float], seen: int, at: float, window: int
) -> Recovery | None:
    """Whether the mean of the last `window` values, of `seen` in all, is back at `RECOVERED` of its level before."""
    if shift is None or seen - shift.changed_index < window:
        return None
    # For a level above 0 that is RECOVERED times the level; one below 0 may be missed by as much.
    if fmean(values[-window:]) < shift.before - (1.0 - RECOVERED) * abs(shift.before):
        return None
    return Recovery(
        stream=shift.stream,
        cohort=shift.cohort,
        trajectories=shift.trajectories,
        recovered_at=at,
        recovered_after=seen - shift.changed_index,
        recovered_seconds=at - shift.changed_at,
    )
