"""The services, started once for all tests; failed tests show their logs."""

import miniature
import pytest
from dagster_api import DagsterApi
from dump_site import DumpSite
from stack import Stack, running_stack

from workflows.lib.resources import DUMP_ASSETS

WIKI = "testwiki"


@pytest.fixture(scope="session")
def dump_site(tmp_path_factory):
    """A site with this month's dump of WIKI: the generated encyclopedia under another name."""
    with DumpSite(WIKI, tmp_path_factory.mktemp("site")).running() as site:
        yield site


@pytest.fixture(scope="session")
def stack(dump_site, tmp_path_factory, request):
    """PostgreSQL, MLflow, code server, webserver and daemon, whose preset is the miniature."""
    base = tmp_path_factory.mktemp("services")
    settings = {
        "BERT_PRESET": str(miniature.write_preset(base)),
        "BERT_WIKI": WIKI,
        "BERT_DUMP_SITES": dump_site.address,
        "BERT_RETRAIN_CRON": "* * * * *",
    }
    with running_stack(base / "stack", **settings) as running:
        request.config.stash[STACK] = running
        yield running


@pytest.fixture(scope="session")
def dagster(stack):
    """The webserver's GraphQL."""
    return DagsterApi(stack.dagster)


@pytest.fixture(scope="session")
def trained(dagster):
    """Run that materialized everything from the sample's dump to its registered model."""
    run_id = dagster.launch(DUMP_ASSETS, miniature.DUMP)
    dagster.succeeded(run_id)
    return run_id


STACK = pytest.StashKey[Stack]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Show the end of each server's log if a test failed."""
    report = yield
    stack = item.config.stash.get(STACK, None)
    if report.failed and stack is not None:
        for server in stack.servers.values():
            report.sections.append((f"log of {server.name}", server.tail(4000)))
    return report
