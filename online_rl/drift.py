"""Changes of taste and of the prompt mix: found in the stream of trajectories, and how long recovery takes.

::

    reward, residual, metrics of all traffic ─► fall? ─► the mix explains it ──────────► prompt_mix
                                                    ├─► some cohorts clearly stayed ──► wait: it is those cohorts' own
                                                    └─► else ─────────────────────────► taste, in all traffic
    reward, metrics of each cohort ───────────► fall that the rest does not share ────► taste, in that cohort
    shares of the cohorts ────────────────────► another mix ──────────────────────────► prompt_mix

Learning itself moves rewards, so only falls count: of the reward, of each metric, and of the residual r − V (how much
worse than expected an answer was rated), each within a window of recent values (`online_rl.change_points`). A policy
that trains wanders too, without its users' doing, and a fall must stand out against that (`drift.wander`). What
`drift.threshold` bounds is the rate of false alarms over all these tests together (`online_rl.multiple_testing`).
"""

from collections.abc import Mapping, Sequence

from online_rl.change_points import WINDOW
from online_rl.cohort_streams import MAX_METRICS, CohortStreams
from online_rl.cohorts import PROMPT, find_active, name_cohort
from online_rl.detectors import make_detector
from online_rl.drift_events import METRIC, MIX, REWARD, Recovery, Shift
from online_rl.drift_recovery import find_recovery, open_shift
from online_rl.drift_state import DriftState
from online_rl.drift_window import DriftWindow
from online_rl.mix_shift import find_mix_shift
from online_rl.multiple_testing import raise_threshold
from online_rl.settings import DriftSettings
from online_rl.traffic_shift import find_traffic_shift


class DriftMonitor:
    """Fed one trajectory at a time, in the order of training; says what that revealed."""

    def __init__(self, settings: DriftSettings, state: DriftState | None = None) -> None:
        """Raises DetectorMissing."""
        state = state or DriftState()
        self._settings = settings
        self._detector = make_detector(settings.detector, settings.wander)
        self._window = DriftWindow(state.seen, state.rewards, state.residuals, state.times, state.labels)
        self._fresh = state.fresh
        self._open = state.open_shift
        self._fresh_mix = state.fresh_mix
        self._mix_changed = state.mix_changed
        self._streams = CohortStreams(settings, self._detector, state.streams, state.totals)
        self._prompts = state.prompts

    @property
    def state(self) -> DriftState:
        return DriftState(
            seen=self._window.seen,
            rewards=self._window.rewards,
            residuals=self._window.residuals,
            times=self._window.times,
            fresh=self._fresh,
            open_shift=self._open,
            labels=dict(self._window.labels),
            fresh_mix=self._fresh_mix,
            mix_changed=self._mix_changed,
            totals=self._streams.totals,
            streams=self._streams.streams,
            prompts=self._prompts,
        )

    @property
    def rewards_since_shift(self) -> list[float]:
        """The rewards after the one that revealed the last shift; the newest `WINDOW` of them."""
        rewards = self._window.rewards
        return list(rewards[len(rewards) - self._fresh :])

    @property
    def lowest_reward(self) -> float:
        """Of the rewards that are remembered. Raises ValueError where there is none."""
        return min(self._window.rewards)

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
        labels = self._window.labels
        active = find_active(labels)
        values = {REWARD: reward} | {METRIC + name: metrics[name] for name in sorted(metrics)[:MAX_METRICS]}
        own = [name_cohort(name, labels[name][-1]) for name in active if labels[name][-1]]
        # The reward and each metric in all traffic and in each dimension, the residual, the mix of each dimension.
        tests = len(values) * (1 + len(active)) + (residual is not None) + len(active)
        threshold = raise_threshold(self._settings.threshold, tests)
        found = [self._find_shift(active, threshold), self._find_mix(active, threshold), self._find_recovery(at)]
        for stream, value in values.items():
            found += self._streams.observe(stream, value, at, own, self._window.seen, threshold)
        self._learn_prompts(prompt)
        return [event for event in found if event is not None]

    def _remember(self, reward: float, residual: float | None, at: float, labels: Mapping[str, str]) -> None:
        keep = max(WINDOW, self._settings.recovery_window)
        self._window = self._window.add(reward, residual, at, labels, keep)
        self._fresh = min(self._fresh + 1, WINDOW)
        self._fresh_mix = min(self._fresh_mix + 1, WINDOW)

    def _find_shift(self, active: Sequence[str], threshold: float) -> Shift | None:
        seen = self._window.seen
        mix_since = 0 if self._mix_changed is None else seen - self._mix_changed
        found = find_traffic_shift(
            self._window, self._fresh, active, mix_since, threshold, self._detector, self._settings
        )
        if found is None:
            return None
        shift, since = found
        if shift.cause == "prompt_mix":
            # What was earned with the old mix is nothing to compare with.
            self._fresh = since
            return self._restart_mix(shift, since)
        self._open = open_shift(shift, seen - since)
        self._fresh = 0
        # What came before is explained, in every cohort and metric.
        self._streams.restart(shift.evidence["changed_at"])
        return shift

    def _find_mix(self, active: Sequence[str], threshold: float) -> Shift | None:
        found = find_mix_shift(self._window, self._fresh_mix, active, threshold, self._settings)
        return None if found is None else self._restart_mix(*found)

    def _restart_mix(self, shift: Shift, since: int) -> Shift | None:
        """Compare with what came since from here on. None where this very change of the mix was reported before."""
        changed = self._window.seen - since
        before, self._mix_changed = self._mix_changed, changed
        self._fresh_mix = 0
        self._prompts = self._prompts.anew()
        # What the cohorts earned before was earned with the old mix.
        self._streams.restart(shift.evidence["changed_at"])
        reported = shift.stream != MIX and before is not None and changed - before < WINDOW // 2
        return None if reported else shift

    def _find_recovery(self, at: float) -> Recovery | None:
        window = self._window
        recovery = find_recovery(self._open, window.rewards, window.seen, at, self._settings.recovery_window)
        if recovery is not None:
            self._open = None
        return recovery

    def _learn_prompts(self, prompt: Sequence[int]) -> None:
        generation = self._prompts.generation
        self._prompts = self._prompts.learn(prompt, self._settings.prompt_clusters)
        if self._prompts.generation != generation:
            # Of other clusters, these labels say nothing about the mix.
            self._window = self._window.without(PROMPT)
