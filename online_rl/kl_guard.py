"""How strongly the policy is held to the frozen base model, by how far it has gone from it."""


def guard_weight(divergence: float, *, coefficient: float, free: float) -> float:
    """Weight in the loss of ``KL(π ‖ base)``: 0 up to `free` nats a token, `coefficient` from twice that on.

    In between it rises in proportion; with ``free = 0`` it is always `coefficient`. `divergence` ≥ 0 is that of the
    last update, so that the weight is known before the pass that measures the next one. Why the guard must let go:
    docs/adr/0001-exact-kl-guard.md.
    """
    if free == 0.0:
        return coefficient
    return coefficient * min(1.0, max(0.0, divergence / free - 1.0))
