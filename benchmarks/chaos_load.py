"""Clients that ask, rate, rate again, rate late and take back, and remember what was acknowledged to them."""

import random
import threading
import time
import uuid
from collections import deque

import httpx

from benchmarks.chaos_accounts import Acknowledged

QUESTION = "What do you think about rivers?"
ANSWER_TOKENS = 8
TIMEOUT_SECONDS = 60.0
PAUSE_SECONDS = 1.0
"""After a request that failed."""
RECENT = 200


class Load:
    """`workers` threads until `stop`; then each goes on only until what it has sent is acknowledged."""

    def __init__(self, url: str, workers: int, seed: int) -> None:
        self._url = url
        self._stop = threading.Event()
        self._give_up = threading.Event()
        self._lock = threading.Lock()
        self._recent: deque[str] = deque(maxlen=RECENT)
        self.acknowledged: list[Acknowledged] = []
        self.asked = self.asks_failed = self.feedback_refused = 0
        self.unexpected: list[str] = []
        """Answers to feedback that a client must not get whatever died."""
        self._threads = [
            threading.Thread(target=self._work, args=(random.Random(f"{seed}/{number}"),)) for number in range(workers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float) -> None:
        """What is not acknowledged after so long is given up, and not counted."""
        self._stop.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._give_up.set()
        for thread in self._threads:
            thread.join()

    def _work(self, chance: random.Random) -> None:
        with httpx.Client(base_url=self._url, timeout=TIMEOUT_SECONDS) as http:
            while not self._stop.is_set():
                inference_id = self._ask(http)
                if inference_id is None:
                    self._stop.wait(PAUSE_SECONDS)
                    # While the policy is away feedback on earlier answers goes on.
                    inference_id = self._any_recent(chance)
                if inference_id is not None:
                    self._rate(http, chance, inference_id)

    def _ask(self, http: httpx.Client) -> str | None:
        body = {
            "model": "policy",
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": ANSWER_TOKENS,
            "user": f"customer-{uuid.uuid4().int % 40}",
        }
        try:
            answer = http.post("/v1/chat/completions", json=body)
            found = answer.headers.get("x-inference-id") if answer.status_code == 200 else None
        except httpx.HTTPError:
            found = None
        with self._lock:
            self.asked += 1
            if found is None:
                self.asks_failed += 1
            else:
                self._recent.append(found)
        return found

    def _any_recent(self, chance: random.Random) -> str | None:
        with self._lock:
            return chance.choice(self._recent) if self._recent else None

    def _rate(self, http: httpx.Client, chance: random.Random, inference_id: str) -> None:
        """Mostly one feedback; sometimes sent twice, taken back, or followed by another on an older answer."""
        kind = chance.random()
        first = self._post(http, chance, inference_id, times=2 if kind < 0.1 else 1)
        if first is not None and 0.1 <= kind < 0.2:
            self._retract(http, first)
        if kind >= 0.9 and (older := self._any_recent(chance)) is not None:
            self._post(http, chance, older)

    def _post(
        self, http: httpx.Client, chance: random.Random, inference_id: str, times: int = 1
    ) -> Acknowledged | None:
        one = Acknowledged(key=uuid.uuid4().hex, inference_id=inference_id)
        body = {"inference_id": inference_id, "value": float(chance.random() < 0.5), "idempotency_key": one.key}
        for _ in range(times):
            answer = self._until_answered(http, "POST", "/v1/feedback", body)
            if answer is not None:
                one.feedback_ids.append(answer["feedback_id"])
        if not one.feedback_ids:
            return None
        with self._lock:
            self.acknowledged.append(one)
        return one

    def _retract(self, http: httpx.Client, one: Acknowledged) -> None:
        one.retracted = self._until_answered(http, "DELETE", f"/v1/feedback/{one.feedback_ids[0]}", None) is not None

    def _until_answered(self, http: httpx.Client, method: str, path: str, body: object) -> dict | None:
        """As a client should: again under the same key, until it is acknowledged. None where it was given up."""
        while not self._give_up.is_set():
            try:
                answer = http.request(method, path, json=body)
            except httpx.HTTPError:
                self._give_up.wait(PAUSE_SECONDS)
                continue
            if answer.status_code in (200, 202):
                return answer.json()
            with self._lock:
                self.feedback_refused += 1
                if answer.status_code < 500 and answer.status_code != 429:
                    self.unexpected.append(f"{method} {answer.status_code}: {answer.text[:200]}")
                    return None
            self._give_up.wait(PAUSE_SECONDS)
        return None
