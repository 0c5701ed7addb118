"""Whether an application answers as its OpenAPI document says, whatever it is asked."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import (
    CoveragePhaseConfig,
    GenerationConfig,
    PhasesConfig,
    ProjectConfig,
    ProjectsConfig,
    SchemathesisConfig,
)
from schemathesis.schemas import APIOperation, BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

DOCUMENTED = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
"""Checks of an answer to anything."""
REFUSED = (*DOCUMENTED, negative_data_rejection)
"""And that what the document does not allow is refused."""


def open_schema(app: Any, path: str, headers: dict[str, str] | None = None) -> BaseSchema:
    """The document that `app` serves at `path`, with `app` behind it."""
    project = ProjectConfig(
        base_url="http://127.0.0.1",
        # A stream without end is cut after its first event.
        max_stream_events=1,
        phases=PhasesConfig(coverage=CoveragePhaseConfig(unexpected_methods=set())),
    )
    config = SchemathesisConfig(projects=ProjectsConfig(default=project))
    return schemathesis.openapi.from_asgi(path, app, config=config, headers={"host": "127.0.0.1", **(headers or {})})


def operations(schema: BaseSchema) -> Iterator[APIOperation]:
    return (found.ok() for found in schema.get_all_operations())


def require_documented(case: Case, checks: tuple[Any, ...] = DOCUMENTED, **more: Any) -> int:
    """The status of the answer to `case`. Raises where the answer fails one of `checks`."""
    return case.call_and_validate(checks=list(checks), **more).status_code


def try_each(schema: BaseSchema, check: Callable[[Case], int]) -> dict[str, int]:
    """`check` each operation with one request. Returns the status by operation."""
    return {
        operation.label: check(next(_bounds(schema, operation, GenerationMode.POSITIVE)))
        for operation in operations(schema)
    }


def try_all(schema: BaseSchema, check: Callable[[Case], int], examples: int) -> dict[str, Counter[int]]:
    """`check` each operation at the bounds of all that it takes, and with up to `examples` requests by chance as the
    document has them, and as many that it forbids.

    The same each time. Returns by operation which statuses it answered with, and how often.
    """
    answered: dict[str, Counter[int]] = {}
    for operation in operations(schema):
        statuses = answered[operation.label] = Counter()
        modes = list(GenerationMode)
        for case in _bounds(schema, operation, *modes):
            statuses[check(case)] += 1
        # Where all that can be given is text in the path, nothing is forbidden.
        for mode in modes if operation.body or operation.query else [GenerationMode.POSITIVE]:
            _run(operation.as_strategy(generation_mode=mode), check, statuses, examples)
    return answered


def _bounds(schema: BaseSchema, operation: APIOperation, *modes: GenerationMode) -> Iterator[Case]:
    """Requests at and beyond the bounds of what `operation` takes."""
    return schema.iter_coverage_cases(
        operation, generation_modes=list(modes), generation_config=GenerationConfig(modes=list(modes))
    )


def _run(cases: SearchStrategy[Case], check: Callable[[Case], int], statuses: Counter[int], examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def run(case: Case) -> None:
        statuses[check(case)] += 1

    run()
