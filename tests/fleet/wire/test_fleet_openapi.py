"""The document of the wire: whole, kept, and true of what the receiver answers to a thousand made-up calls."""

import inspect
import json
import re

import pytest
from places import ROOT, TESTS
from receiver_running import Wire, running

from training.fleet.receiver.http import endpoints, enrolment, openapi, uploads
from training.fleet.scheduling.job import REPORTABLE
from training.fleet.service.job_views import JobViews
from training.fleet.wire import constants
from training.fleet.wire.constants import ProblemType
from training.fleet.wire.identity import Role
from training.fleet.wire.routes import ROUTES, refusals

KEPT = ROOT / "docs" / "openapi.json"
HOW = "run: python -m training.fleet.receiver.http.openapi docs/openapi.json"


def test_the_document_that_is_kept_is_the_one_that_is_served(tmp_path):
    assert KEPT.read_text(encoding="utf-8") == openapi.text(), HOW
    with running(tmp_path) as receiver, Wire(receiver) as wire:
        status, headers, body = wire.request("GET", openapi.PATH).answer()
    assert (status, headers["content-type"]) == (200, "application/json")
    assert body == KEPT.read_bytes(), "to the byte, for whoever compares"


def test_every_row_of_the_table_has_its_function_and_no_function_lacks_a_row():
    named = [row.name for row in ROUTES]
    assert len(set(named)) == len(named)
    assert set(endpoints.endpoints()) == set(named), "see training/fleet/wire/routes.py"


def test_what_is_served_is_the_table_and_nothing_else():
    """HEAD goes with GET, as everywhere in HTTP."""
    listed = {(row.method, row.path) for row in ROUTES}
    served = {(method, route.path) for route in endpoints.routes() for method in route.methods or ()}
    assert listed <= served
    assert {(m, p) for m, p in served - listed if m != "HEAD" or ("GET", p) not in listed} == set()
    assert len(listed) == len(ROUTES), "no address twice"


def test_every_kind_of_refusal_is_documented_somewhere():
    found = {problem_type for row in ROUTES for problem_type in refusals(row)}
    assert set(ProblemType) - found == {ProblemType.METHOD_NOT_ALLOWED}  # is an answer to what is not documented


def test_what_the_document_says_of_values_is_what_is_checked():
    schemas = openapi.document()["components"]["schemas"]
    assert set(schemas["FailRequest"]["properties"]["reason"]["enum"]) == set(REPORTABLE)
    assert schemas["JoinRequest"]["properties"]["role"]["enum"] == [*Role]
    assert schemas["TokenRequest"]["properties"]["days"]["maximum"] == enrolment.DAYS_MAX
    assert schemas["ClaimRequest"]["properties"]["host_id"]["pattern"] == constants.HOST_ID_PATTERN


def test_every_header_that_an_upload_reads_is_documented():
    for method in ("put", "head"):
        found = openapi.document()["paths"]["/v1/model/{job_id}"][method]["parameters"]
        said = {each["name"] for each in found if each["in"] == "header"}
        read = re.findall(r"HEADER_[A-Z0-9_]+", inspect.getsource(uploads._announced))
        wanted = {getattr(constants, name) for name in read}
        assert wanted - said == ({constants.HEADER_OFFSET} if method == "head" else set())


def references(value):
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_reference_leads_somewhere():
    document = openapi.document()
    for reference in set(references(document)):
        found = document
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]


def test_the_program_writes_it(tmp_path, capsys):
    assert openapi.main([str(tmp_path / "openapi.json")]) == 0
    assert openapi.main([]) == 0
    assert (tmp_path / "openapi.json").read_text(encoding="utf-8") == capsys.readouterr().out


# -- generated calls --------------------------------------------------------------------------------------------

CHECKS = {
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "positive_data_acceptance",
    "unsupported_method",
    "ignored_auth",
    "use_after_free",
    "ensure_resource_availability",
    "missing_required_header",
}


WORKERS_CALLS = "^/v1/(job/|model/|join|renew)"  # where a certificate makes a difference


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("kind", "paths"), [("app", ""), pytest.param("tls", WORKERS_CALLS, marks=pytest.mark.thorough)]
)
def test_no_made_up_call_is_answered_otherwise_than_documented(kind, paths, seed, tmp_path):
    """``python -m tests.api --calls 100000`` is the same for longer, at all addresses with TLS and without."""
    pytest.importorskip("schemathesis")
    from api.run import Target, run

    result = run(tmp_path, 1, seed=seed, kind=Target(kind), paths=paths)
    assert result.failures == [], "\n".join(result.failures)
    assert result.calls >= (100 if paths else 400)
    assert set(result.checks) >= CHECKS
    good = {each.removesuffix(" 200") for each in result.statuses if each.endswith(" 200")}
    deep = {"POST /v1/job/claim", "PUT /v1/model/{job_id}", "POST /v1/job/{job_id}/complete"}
    assert good >= deep, "the calls stay at the door"


def test_the_calls_see_a_bug_and_an_answer_that_is_not_documented(tmp_path, monkeypatch):
    pytest.importorskip("schemathesis")
    from api.run import run

    def broken(*_args, **how):
        if how.get("after"):
            raise ZeroDivisionError
        raise constants.Refusal(ProblemType.SPEC_MISMATCH, "never said of this address")

    monkeypatch.setattr(JobViews, "jobs", broken)
    said = "\n".join(run(tmp_path, 1, seed=1, paths="^/v1/jobs$").failures)
    assert "GET /v1/jobs: not_a_server_error" in said
    assert "GET /v1/jobs: status_code_conformance" in said


def test_the_record_of_the_long_run_holds_documented_answers_and_is_what_the_page_says():
    record = json.loads((TESTS / "api" / "record.json").read_bytes())
    documented = openapi.document()["paths"]
    undocumented = set()
    for answer in record["answers"]:
        method, path, status = answer.split()
        # A method that the address does not have is answered with 405; the document is of those that it has.
        if status != "405" and status not in documented[path][method.lower()]["responses"]:
            undocumented.add(answer)
    assert undocumented == set()
    calls = sum(record["answers"].values())
    assert record["calls"] == calls == sum(run["calls"] for run in record["runs"])
    page = " ".join((KEPT.parent / "security-threats.md").read_text(encoding="utf-8").split())
    assert f"{calls:,} generated calls" in page
    assert f"{record['server_errors']} server errors" in page


def test_a_flag_is_no_file_to_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        openapi.main(["--help"])
    assert not list(tmp_path.iterdir())
