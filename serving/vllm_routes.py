"""What is hung into the routes of vLLM's own application: each parsed request is seen, each version is listed.

Written against vLLM 0.32, whose handlers lie in the application's state; vLLM itself is not imported here.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from serving.refusal import Refusal

HANDLERS = (
    ("openai_serving_chat", "create_chat_completion"),
    ("openai_serving_completion", "create_completion"),
    ("openai_serving_responses", "create_responses"),
    ("anthropic_serving_messages", "create_messages"),
)
"""Name in the application's state → the method that answers a request; one for each generating route."""
LORA_LIMIT = (
    "Log-probabilities of the prompt (`prompt_logprobs`, or `echo` with `logprobs`) are not served with swap.mode lora."
)
"""In vLLM 0.32 such a request to an engine with LoRA ends in a shape error that kills the engine for everybody."""

Before = Callable[[Any], Awaitable[Refusal | None]]


def observe_requests(app: Any, before: Before, *, takes_adapters: bool) -> None:
    """Have `before(request)` see each parsed request of the generating routes, before the engine's handler.

    It may change the request's model, or refuse the request, which is answered in vLLM's shape. `takes_adapters`:
    whether the engine was started with LoRA.
    """
    for attribute, method in HANDLERS:
        handler = getattr(app.state, attribute)
        if handler is not None:
            names_itself = attribute == "openai_serving_responses"
            original = getattr(handler, method)
            setattr(handler, method, _observed(handler, original, before, takes_adapters, names_itself))


def _observed(
    handler: Any, original: Callable[..., Awaitable[Any]], before: Before, takes_adapters: bool, names_itself: bool
) -> Callable[..., Awaitable[Any]]:
    """`names_itself`: the route takes the response's id from the body, not from the header as the others do."""

    async def observed(request: Any, raw_request: Any = None) -> Any:
        if takes_adapters and _wants_prompt_logprobs(request):
            return handler.create_error_response(LORA_LIMIT, param="prompt_logprobs")
        refusal = await before(request)
        if refusal is not None:
            return handler.create_error_response(
                refusal.message, err_type=refusal.kind, status_code=refusal.status, param=refusal.param
            )
        if names_itself and raw_request is not None:
            request.request_id = f"resp_{raw_request.headers['x-request-id']}"
        return await original(request, raw_request)

    return observed


def _wants_prompt_logprobs(request: Any) -> bool:
    echoes = getattr(request, "echo", False) and getattr(request, "logprobs", None) is not None
    return echoes or getattr(request, "prompt_logprobs", None) is not None


def list_versions(app: Any, versions: Callable[[], Sequence[tuple[str, str | None, str]]]) -> None:
    """Add a card for each (name, parent, root) of `versions()` to ``GET /v1/models``."""
    models = app.state.openai_serving_models
    original = models.show_available_models

    async def show() -> Any:
        listing = await original()
        alias = listing.data[0]
        listing.data = [
            alias,
            *(
                alias.model_copy(update={"id": name, "parent": parent, "root": root})
                for name, parent, root in versions()
            ),
        ]
        return listing

    models.show_available_models = show
