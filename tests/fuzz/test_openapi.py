"""Requests made from the OpenAPI document: every answer is one that the document declares."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from tests.helpers.service import Service, running

CHECKS = (status_code_conformance, content_type_conformance)
EXAMPLES = 150
OWN_WISH = "deadline_exceeded"
"""The one 5xx a caller can ask for, by a deadline that cannot be met."""


def attack(operation: Any, service: Service) -> None:
    """Call one operation many times, with what its schema allows."""

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=operation.as_strategy())
    def run(case: Any) -> None:
        response = case.call(base_url=service.base_url)
        case.validate_response(response, checks=CHECKS)
        assert response.status_code < 500 or response.json()["code"] == OWN_WISH, response.text

    run()


@pytest.mark.fuzz
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
def test_answers_are_those_declared() -> None:
    """No undeclared status, no undeclared content type, no 5xx, for every operation."""
    with running(env={"MMPREP_TELEMETRY__LOG_LEVEL": "error"}) as service:
        schema = schemathesis.openapi.from_url(f"{service.base_url}/openapi.json")
        operations = [found.ok() for found in schema.get_all_operations()]
        assert len(operations) >= 9
        for operation in operations:
            attack(operation, service)
        assert service.get("/readyz").status_code == 200
