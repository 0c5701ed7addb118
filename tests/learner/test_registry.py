"""The registry keeps one live version, refuses illegal moves, and survives repeated calls."""

import pytest
import sqlalchemy as sa

from online_rl.heartbeat import beat
from online_rl.registry import IllegalTransition, Registry, UnknownVersion
from online_rl.schemas import VersionState
from online_rl.tables import metadata, parts, policy_versions


@pytest.fixture
def engine(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'test.db'}")
    metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def registry(engine):
    registry = Registry(engine)
    registry.ensure_base("models/base")
    return registry


def test_the_base_is_version_0_and_live(registry):
    assert registry.ensure_base("models/base").version == 0
    live = registry.live()
    assert live is not None
    assert (live.version, live.artifact, live.parent) == (0, "models/base", None)
    assert registry.next_version() == 1


def test_promoting_retires_the_former_live_version(registry):
    registry.add_candidate(1, 0, "v1", {"kl_to_base": 0.5})
    promoted = registry.transition(1, VersionState.LIVE, metrics={"mismatch_mean": 0.03})
    assert promoted.metrics == {"kl_to_base": 0.5, "mismatch_mean": 0.03}
    assert [version.state for version in registry.list()] == [VersionState.RETIRED, VersionState.LIVE]


def test_illegal_moves_are_refused_and_change_nothing(registry):
    registry.add_candidate(1, 0, "v1", {})
    registry.transition(1, VersionState.REJECTED, reason="probe failed")
    with pytest.raises(IllegalTransition, match="rejected and cannot become live"):
        registry.transition(1, VersionState.LIVE)
    # The former live version was moved first in that transaction, and is live again after it failed.
    assert [version.state for version in registry.list()] == [VersionState.LIVE, VersionState.REJECTED]
    with pytest.raises(UnknownVersion):
        registry.transition(7, VersionState.LIVE)


def test_adding_a_candidate_again_is_a_retry(registry):
    first = registry.add_candidate(1, 0, "v1", {})
    registry.transition(1, VersionState.LIVE)
    assert registry.add_candidate(1, 0, "v1", {}).created_at == first.created_at
    assert registry.get(1).state is VersionState.LIVE
    with pytest.raises(IllegalTransition):
        registry.add_candidate(1, 0, "elsewhere", {})


def test_rollback_is_one_step(registry):
    registry.add_candidate(1, 0, "v1", {})
    registry.transition(1, VersionState.LIVE)
    registry.roll_back(0, reason="operator")
    assert [version.state for version in registry.list()] == [VersionState.LIVE, VersionState.ROLLED_BACK]


def test_the_database_refuses_a_second_live_version(registry, engine):
    registry.add_candidate(1, 0, "v1", {})
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
        connection.execute(sa.update(policy_versions).values(state="live"))


def test_freezing(registry):
    assert not registry.frozen()
    registry.set_frozen(True, "looking into it")
    assert registry.frozen()
    registry.set_frozen(False, "done")
    assert not registry.frozen()


def test_a_heartbeat_replaces_the_one_before(engine):
    beat(engine, "learner", "starting")
    beat(engine, "learner", "running", "update 3")
    with engine.connect() as connection:
        rows = connection.execute(sa.select(parts)).all()
    assert [(row.name, row.state, row.detail) for row in rows] == [("learner", "running", "update 3")]
