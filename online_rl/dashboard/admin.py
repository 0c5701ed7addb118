"""The routes under ``/admin``: what the service knows, and what an operator can change."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from sqlalchemy import Engine
from sse_starlette import EventSourceResponse, ServerSentEvent

from feedback.schemas import refusals
from online_rl.dashboard import cohort_rewards, episodes, lineage, queries, rewards
from online_rl.dashboard.alarm import Alarm
from online_rl.dashboard.deliveries import RegistryDeliveries
from online_rl.dashboard.lineage_records import DataLineage, VersionLineage
from online_rl.dashboard.live_status import StatusFeed
from online_rl.dashboard.status import Status
from online_rl.registry import Registry
from online_rl.schemas import PolicyVersion
from online_rl.service.rights import ErasureReport, UserRights
from serving.schemas import LARGEST_INTEGER, Count, bare_inference_id, check_text

PING_S = 10
Limit = Annotated[int, Query(ge=1, le=5000)]
Id = Annotated[str | None, Query(min_length=1, max_length=4096), AfterValidator(lambda text: text and check_text(text))]


# Bodies are strict: `true` is no version number, however Python counts.
_BODY = ConfigDict(extra="forbid", strict=True)


class Change(BaseModel):
    """Why an operator changes something; kept in the record."""

    model_config = _BODY

    reason: Annotated[str, Field(min_length=1, max_length=500), AfterValidator(check_text)]


class RollbackChange(Change):
    """`to` names the version to go back to; without it, the one that was live before."""

    to: Count | None = None


class Erasure(BaseModel):
    """Whose content is to go: the user's id, and the API key's (empty: under every key)."""

    model_config = _BODY

    user: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(check_text)]
    api_key_id: Annotated[str, Field(max_length=64), AfterValidator(check_text)] = ""


def refuse_foreign_pages(request: Request) -> None:
    """A page of another site must not change anything here through the visitor's browser."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise HTTPException(403, "this route cannot be called by a page of another site")


def admin_routes(
    engine: Engine,
    registry: Registry,
    deliveries: RegistryDeliveries,
    feed: StatusFeed,
    rights: UserRights,
) -> APIRouter:
    """The routes; reading ones are plain functions, so that a slow query never holds the event loop."""
    router = APIRouter(prefix="/admin")
    changes = [Depends(refuse_foreign_pages)]

    @router.get("/status", responses=refusals())
    def status() -> Status:
        return feed.read().status

    @router.get("/alarms", responses=refusals())
    def alarms() -> list[Alarm]:
        return feed.read().alarms

    @router.get("/trajectories", responses=refusals(422))
    def trajectories(
        before: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        worst: bool = False,
    ) -> list[episodes.TrajectorySummary]:
        return episodes.read_trajectories(engine, before=before, limit=limit, worst=worst)

    @router.get("/trajectories/{trajectory}", responses=refusals(404, 422))
    def trajectory(
        trajectory: Annotated[str, Path(max_length=256), AfterValidator(check_text)],
    ) -> episodes.TrajectoryRecord:
        return episodes.read_trajectory(engine, trajectory)

    @router.get("/cohorts", responses=refusals())
    def cohorts() -> list[cohort_rewards.CohortReward]:
        return cohort_rewards.read_cohorts(engine)

    @router.get("/versions", responses=refusals())
    def versions() -> dict[str, Any]:
        return queries.read_versions(engine, registry)

    @router.get("/versions/{version}/lineage", responses=refusals(404, 422))
    def version_lineage(
        version: Annotated[int, Path(ge=0, le=LARGEST_INTEGER)], whole: bool = False, limit: Limit = 1000
    ) -> VersionLineage:
        return lineage.read_version(engine, version, whole=whole, limit=limit)

    @router.get("/lineage", responses=refusals(404, 422))
    def data_lineage(trajectory: Id = None, user: Id = None, inference: Id = None, limit: Limit = 1000) -> DataLineage:
        if [trajectory, user, inference].count(None) != 2:
            raise HTTPException(422, "give one of trajectory, user, inference")
        if trajectory is not None:
            return lineage.read_trajectory(engine, trajectory)
        if inference is not None:
            return lineage.read_inference(engine, bare_inference_id(inference))
        return lineage.read_user(engine, rights.names(user or ""), limit)

    @router.post("/users/erase", dependencies=changes, responses=refusals(422))
    def erase_user(wanted: Erasure) -> ErasureReport:
        return rights.erase(wanted.user, wanted.api_key_id)

    @router.post("/versions/{version}/promote", dependencies=changes, responses=refusals(404, 409, 422))
    def promote(version: Annotated[int, Path(ge=0, le=LARGEST_INTEGER)], change: Change) -> PolicyVersion:
        return deliveries.promote(version, change.reason)

    @router.post("/rollback", dependencies=changes, responses=refusals(404, 409, 422))
    def rollback(change: RollbackChange) -> PolicyVersion:
        return deliveries.roll_back(change.to, change.reason)

    @router.post("/freeze", dependencies=changes, responses=refusals(422))
    def freeze(change: Change) -> dict[str, bool]:
        registry.set_frozen(True, change.reason)
        return {"learning_frozen": True}

    @router.post("/resume", dependencies=changes, responses=refusals(422))
    def resume(change: Change) -> dict[str, bool]:
        registry.set_frozen(False, change.reason)
        return {"learning_frozen": False}

    @router.get("/drift", responses=refusals(422))
    def drift(limit: Limit = 200) -> dict[str, Any]:
        return {"events": queries.read_drift_events(engine, limit)}

    @router.get("/dead-letters", responses=refusals(422))
    def dead_letters(limit: Limit = 100) -> dict[str, Any]:
        return queries.read_dead_letters(engine, limit)

    @router.get("/rewards", responses=refusals(422))
    def reward_series(
        since: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None,
        limit: Annotated[int, Query(ge=1, le=2000)] = 500,
        bucket: Annotated[float | None, Query(gt=0, allow_inf_nan=False)] = None,
    ) -> rewards.RewardSeries:
        return rewards.read_rewards(engine, since=since, limit=limit, bucket=bucket)

    @router.get("/updates", responses=refusals(422))
    def updates(
        since: Annotated[int | None, Query(ge=0, le=LARGEST_INTEGER)] = None, limit: Limit = 500
    ) -> dict[str, Any]:
        return {"updates": queries.read_updates(engine, since, limit)}

    @router.get(
        "/events",
        response_class=EventSourceResponse,
        responses={200: {"content": {"text/event-stream": {}}}, **refusals()},
    )
    async def events() -> EventSourceResponse:
        async def stream() -> AsyncIterator[ServerSentEvent]:
            async for snapshot in feed.follow():
                yield ServerSentEvent(snapshot.model_dump_json(), event="status")

        return EventSourceResponse(stream(), ping=PING_S, headers={"cache-control": "no-store"})

    return router
