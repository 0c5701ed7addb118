"""A stub of the service's HTTP routes, served for real on a free port, with a learner that only counts."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass
class StubService:
    """`answers` are given in turn; the knobs make it fail."""

    answers: list[str] = field(
        default_factory=lambda: ["I love them, they are wonderful!", "They are fine to look at."]
    )
    batch: int = 16
    fail_chats: int = 0
    """How many of the next chat requests answer 503."""
    cut_streams: int = 0
    """How many of the next streams break off without a finish reason."""
    fail_feedback: int = 0
    """How many of the next feedback posts are stored but answered with 503."""
    refuse_feedback: bool = False
    learning: bool = True
    polls_per_update: int = 1
    """The learner is done with a batch at every this many looks at the status."""
    polls: int = 0
    version: int = 0
    chats: list[dict[str, Any]] = field(default_factory=list)
    untrained: list[str] = field(default_factory=list)
    feedback: dict[str, dict[str, Any]] = field(default_factory=dict)
    posts: int = 0
    most_outstanding: int = 0
    trained: int = 0
    url: str = ""

    async def chat(self, request: Request) -> Response:
        if self.fail_chats:
            self.fail_chats -= 1
            return JSONResponse({"error": {"message": "no"}}, status_code=503)
        body = await request.json()
        number = len(self.chats)
        self.chats.append(body)
        train = request.headers.get("x-train") != "false"
        if train:
            self.most_outstanding = max(self.most_outstanding, len(self._rated_once()) + 1 - self.trained)
        else:
            self.untrained.append(body["messages"][-1]["content"])
        texts = [self.answers[(number + index) % len(self.answers)] for index in range(body.get("n") or 1)]
        headers = {"x-inference-id": f"id-{number}", "x-policy-version": str(self.version)}
        common = {"id": f"chatcmpl-id-{number}", "created": 0, "model": "policy"}
        if not body.get("stream"):
            choices = [
                {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                for index, text in enumerate(texts)
            ]
            return JSONResponse({**common, "object": "chat.completion", "choices": choices}, headers=headers)
        cut = self.cut_streams > 0
        self.cut_streams -= cut
        return StreamingResponse(self._stream(common, texts, cut), headers=headers, media_type="text/event-stream")

    async def _stream(self, common: dict[str, Any], texts: list[str], cut: bool) -> AsyncIterator[str]:
        """Word by word, the choices taking turns, as the engine streams them."""

        def chunk(index: int, delta: dict[str, str], finish_reason: str | None) -> str:
            choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
            return f"data: {json.dumps({**common, 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"

        for words in zip_longest(*(text.split(" ") for text in texts)):
            for index, word in enumerate(words):
                if word is not None:
                    yield chunk(index, {"content": word + " "}, None)
        if not cut:
            for index in range(len(texts)):
                yield chunk(index, {}, "stop")
            yield "data: [DONE]\n\n"

    def _rated_once(self) -> set[str]:
        return {body["inference_id"] for body in self.feedback.values()}

    async def post_feedback(self, request: Request) -> Response:
        body = await request.json()
        self.posts += 1
        if self.refuse_feedback:
            return JSONResponse({"detail": "value: out of range"}, status_code=422)
        key = body["idempotency_key"]
        known = key in self.feedback
        assert not known or self.feedback[key] == body
        self.feedback[key] = body
        if self.fail_feedback:
            self.fail_feedback -= 1
            return JSONResponse({"detail": "try again"}, status_code=503)
        return JSONResponse({"feedback_id": key}, status_code=200 if known else 202)

    async def status(self, _request: Request) -> Response:
        self.polls += 1
        if (
            self.learning
            and self.polls % self.polls_per_update == 0
            and len(self.feedback) - self.trained >= self.batch
        ):
            self.trained += self.batch
            self.version += 1
        return JSONResponse(
            {
                "live_version": self.version,
                "versions_published": self.version,
                "trajectories_released": len(self.feedback),
                "trajectories_trained": self.trained,
                "trajectories_dropped": {},
                "backlog": len(self.feedback) - self.trained,
                "mismatch_mean": 0.02,
                "something_new": 1,
            }
        )

    async def ready(self, _request: Request) -> Response:
        return JSONResponse({"ready": True})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve while the block runs; yields the URL."""
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/feedback", self.post_feedback, methods=["POST"]),
            Route("/admin/status", self.status),
            Route("/ready", self.ready),
        ]
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(Starlette(routes=routes), log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield self.url
        finally:
            server.should_exit = True
            await task
            listener.close()
