"""Settings of the learner, of drift detection and of the response to drift."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class LearnerSettings(BaseModel):
    """How the policy learns."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    objective: Literal[
        "sao",
        "ppo",
        "grpo",
        "grpo_dis",
        "cispo",
        "gspo",
        "running_mean",
        "prompt_running_mean",
        "ema",
        "single_stream",
        "naive",
        "spo",
        "asympo",
        "gpg",
    ] = "sao"
    """The policy objective; `online-rl objectives` lists what each needs."""
    batch_size: Annotated[int, Field(ge=1)] = 16
    """Trajectories for one policy update."""
    batch_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Longest wait for a full batch once `min_batch` trajectories are there."""
    min_batch: Annotated[int, Field(ge=1)] = 8
    """Fewest trajectories for one policy update."""
    user_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Largest part of a batch that one user may fill, and `min_batch` in any case; the rest of that user's waits. Who
    asks without a user is not bounded. 1: nobody is."""
    learning_rate: NonNegative = 1e-3
    """AdamW step of the policy (LoRA; full weights want about 1e-6)."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """How the policy's step falls over `schedule_updates`, and again after each shift of taste (`response`): large
    while there is much to learn, small when what is left is the noise of few answers."""
    warmup_updates: Annotated[int, Field(ge=0)] = 0
    """Updates over which the policy's step rises to `learning_rate`."""
    schedule_updates: Annotated[int, Field(ge=1)] = 32
    """Updates, the warm-up included, after which the policy's step has fallen to `schedule_floor`."""
    schedule_floor: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of `learning_rate` that is left then, so that a service never stops learning by itself."""
    value_learning_rate: NonNegative = 2e-4
    """AdamW step of the value model."""
    value_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """β1 of the value model's AdamW. The usual 0.9 remembers five updates, and overshoots when taste changes."""
    value_updates: Annotated[int, Field(ge=0)] = 2
    """K: value updates for each policy update."""
    value_warmup: Annotated[int, Field(ge=0)] = 4
    """Value updates before the first policy update."""
    pretrained_value: Literal["use", "warm_up", "ignore"] = "use"
    """What becomes of the value weights that `online-rl pretrain-value` wrote: `use` them at the next start in place of
    the warm-up, use them and `warm_up` nevertheless, or `ignore` them."""
    advantages_from: Literal["before", "after"] = "before"
    """Whether advantages use the values before or after the K value updates."""
    value_clip: float | None = None
    """Largest change of a value in one update's loss; empty: no clipping."""
    epsilon_low: NonNegative = 0.3
    """DIS drops a token whose ratio is at or below 1 − this."""
    epsilon_high: NonNegative = 5.0
    """DIS drops a token whose ratio is at or above 1 + this."""
    clip_low: Fraction = 0.2
    """PPO's clip holds the ratio above 1 − this (ppo, grpo, single_stream)."""
    clip_high: NonNegative = 0.28
    """PPO's clip holds the ratio below 1 + this."""
    gspo_clip_low: Fraction = 3e-4
    """The same for the ratio of a whole response, the geometric mean of its tokens' (gspo)."""
    gspo_clip_high: NonNegative = 4e-4
    """The same for the ratio of a whole response."""
    spo_alpha: Fraction = 0.2
    """Factor of negative advantages (spo): 1 is naive, 0 trains on good responses only."""
    asympo_p_low: Fraction = 0.01
    """A token of negative advantage that is less likely than this is not pushed further down (asympo)."""
    asympo_p_high: Annotated[float, Field(gt=0, le=1)] = 0.99
    """A token of positive advantage that is more likely than this is not pushed further up (asympo)."""
    asympo_floor: Positive = 0.01
    """Least scale that a response is divided by, nats a token (asympo)."""
    group_seconds: NonNegative = 60.0
    """Longest wait for the members of a group, for objectives that compare them; then it trains as it is. A group id
    without a size waits this long always."""
    baseline_window: Annotated[int, Field(ge=1)] = 128
    """Rewards in the running mean over all prompts (running_mean)."""
    prompt_window: Annotated[int, Field(ge=1)] = 8
    """Rewards in the running mean of one prompt (prompt_running_mean)."""
    baseline_decay: Annotated[float, Field(ge=0, lt=1)] = 0.98
    """What is kept of the moving average at each reward (ema)."""
    tracker_discount: Annotated[float, Field(ge=0, le=1)] = 0.9
    """ρ: what is kept of a prompt's past at each of its rewards (single_stream)."""
    max_prompts: Annotated[int, Field(ge=1)] = 4096
    """Prompts remembered, those seen last (prompt_running_mean, single_stream)."""
    gae: Literal["skip_observation", "plain", "step"] = "skip_observation"
    """Where advantages are estimated with a value model: over action tokens, over all tokens behind the prompt
    (observations too), or over whole actions."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Discount for each step of the advantages' recursion: an action token by default, see `gae`."""
    gae_alpha: Positive = 1.5
    """α in λ = 1 − 1/(α·l)."""
    center_advantages: bool = True
    """Subtract the batch's mean from the advantages of a value model, which lags behind a shift of taste."""
    kl_coefficient: NonNegative = 0.03
    """β: weight in the loss of KL(policy ‖ frozen base), exact over the vocabulary, a token."""
    kl_free: NonNegative = 0.2
    """Nats a token that the policy may be away from the base without being pulled back; from twice that on it is pulled
    in full. 0: always in full."""
    entropy_floor: NonNegative = 0.0
    """Below this mean entropy (nats a token) an update is skipped and counted; 0 switches it off."""
    guard_updates: Annotated[int, Field(ge=0)] = 3
    """Updates in a row with a figure beyond its bound, or failed, after which the learner goes back to the last good
    checkpoint; 0: never."""
    guard_loss: Positive = 100.0
    """Bound of the policy's and the value model's |loss|."""
    guard_grad_norm: Positive = 100.0
    """Bound of both gradient norms, before clipping."""
    guard_kl: Positive = 20.0
    """Bound of the divergence from the base model, nats a token."""
    max_staleness: Annotated[int, Field(ge=0)] = 8
    """Trajectories sampled by a version older than this many versions are dropped and counted."""
    publish_every: Annotated[int, Field(ge=1)] = 1
    """Policy updates for each published version."""
    kl_budget: Positive = 20.0
    """Publish gate: a version further than this from the base (nats a token, on the last batch) is rejected."""
    policy_weights: Literal["lora", "full"] = "lora"
    """What of the policy trains: an adapter, or all weights (then `swap.mode` is `merged` or `full`, and a step of
    about 1e-6 fits)."""
    value_model: Literal["auto", "lora", "full", "shared_trunk"] = "auto"
    """`lora`: adapters on the MLP projections or experts of a network of its own; `full`: those weights themselves;
    `shared_trunk`: a small network on the base model's hidden states, cheap and less able. `auto`: `shared_trunk` on
    CPU, where a network of its own takes half of every update, else `lora`."""
    value_attention: Literal["frozen", "trained"] = "frozen"
    """Whether the value model's attention trains too; `frozen` is what the paper found better."""
    lora_targets: tuple[str, ...] = ()
    """Layers with a policy adapter, by the end of their name, e.g. `q_proj`; empty: all linear ones but the output."""
    lora_rank: Annotated[int, Field(ge=1)] = 8
    """Rank of the policy's and the value model's adapters."""
    lora_alpha: Positive = 16.0
    """Scale of the adapters is alpha / rank."""
    max_grad_norm: Positive = 1.0
    """Gradients are clipped to this norm."""
    weight_decay: NonNegative = 0.0
    """AdamW weight decay."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Precision of the frozen weights and the matrix products; trained weights and moments are float32. `auto`:
    bfloat16 on CUDA and on CPUs that multiply it in hardware (AMX, AVX512-BF16), else float32, 5 times faster there."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of the learner on CPU, at low priority; 0: half of the cores, so that it never waits for the engine's."""
    micro_batch_tokens: Annotated[int, Field(ge=128)] = 1024
    """Distinct tokens in one forward pass (shared prompts count once); a larger batch is split, to the same result."""
    max_tokens: Annotated[int, Field(ge=16)] = 2048
    """A longer trajectory is dropped and counted."""
    train_greedy: bool = False
    """Train on greedy answers too."""
    train_structured: bool = False
    """Train on grammar-constrained answers and forced tool calls too."""
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    """Checkpoints that stay on disk."""
    seed: int = 0
    """Seed of the learner's own randomness."""

    @property
    def user_cap(self) -> int | None:
        """Most trajectories of a batch that are one user's; None: all may be."""
        if self.user_share == 1:
            return None
        # A service with a single user must go on learning.
        return max(self.min_batch, int(self.user_share * self.batch_size), 1)

    @model_validator(mode="after")
    def _room_to_fall(self) -> Self:
        if self.schedule != "constant" and self.schedule_updates <= self.warmup_updates:
            raise ValueError(
                f"schedule_updates is {self.schedule_updates} and includes the {self.warmup_updates} warmup_updates; "
                "set it higher"
            )
        return self


class DriftSettings(BaseModel):
    """When a change of the rewards counts as a shift of taste, and one of the prompts as a changed mix."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    enabled: bool = True
    """Look for shifts."""
    detector: Literal["scan", "adwin", "page_hinkley"] = "scan"
    """What finds a fall in a window of values: the likelihood-ratio scan, or one of river's (`pip install river`)."""
    delta: Positive = 0.15
    """Smallest fall of the mean reward that counts."""
    threshold: Positive = 4.25
    """By how many standard errors a fall must stand out to count as a shift where one test looks at each reward; where
    there are S tests (metrics, cohorts, the mix), √(threshold² + 2·ln S)."""
    wander: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of its level above the lowest reward by which a policy in training wanders without its users' doing; a fall
    must stand out against one by so much."""
    mix_distance: Fraction = 0.2
    """Smallest part of the traffic that must be another one (total variation) for a changed prompt mix."""
    prompt_clusters: Annotated[int, Field(ge=0)] = 8
    """Clusters of prompts, each a cohort; 0: none."""
    max_cohorts: Annotated[int, Field(ge=0)] = 64
    """Cohorts watched, counted for each metric; those seen last."""
    min_samples: Annotated[int, Field(ge=1)] = 32
    """Rewards needed before a shift can be seen, and after one before the next."""
    recovery_window: Annotated[int, Field(ge=1)] = 32
    """Rewards in the moving average that recovery is measured on."""


class ResponseSettings(BaseModel):
    """What the learner does about a shift of taste. It is bounded, and ends by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    enabled: bool = True
    """React to a shift; without, shifts are recorded only."""
    confirm: Annotated[int, Field(ge=1)] = 16
    """Rewards after a shift was found that say what the policy still earns; the reaction begins behind them."""
    updates: Annotated[int, Field(ge=1)] = 8
    """Policy updates that a reaction lasts at most; it ends sooner where the reward is back."""
    least_kept: Fraction = 0.0
    """Least share of the learned change that stays; 1: all of it. What stays is the share of the reward that the policy
    still earns."""
    fresh_moments: bool = True
    """Let the optimisers forget their moments, which still point to the old taste."""
    fresh_schedule: bool = True
    """Begin `learner.schedule` anew: the policy's step is as large as at the start, and falls again."""
    value_factor: Annotated[int, Field(ge=1)] = 2
    """Times `learner.value_updates` while the reaction runs."""
    drop_older: bool = True
    """Drop what was rated before the change and waits for training."""
