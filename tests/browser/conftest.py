"""A finished miniature run, both UIs over it, and a browser; a failed test keeps a screenshot."""

import os

import miniature
import pytest

from workflows.lib.resources import BertHome

FAILED = pytest.StashKey[bool]()


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Collect these tests with `-m browser` only: the others do not need Playwright installed."""
    return None if "browser" in config.getoption("markexpr") else True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Record for the fixtures that a test failed."""
    report = yield
    if call.when == "call" and report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(scope="session")
def finished_home(tmp_path_factory):
    """Home of a finished miniature run."""
    base = tmp_path_factory.getbasetemp() / "miniature-run"
    base.mkdir(exist_ok=True)
    home = BertHome(directory=str(miniature.shared_home(base)))
    log = (base / "log.txt").read_text(encoding="utf-8")
    assert log.rstrip().endswith("exit code 0"), log[-6000:]
    return home


@pytest.fixture(scope="session")
def champion(finished_home):
    """Registered model with a champion; the gates that refuse so small a model are overruled."""
    from bert_model.registry.operations import promote
    from bert_model.registry.promotion import GateConfig

    name = f"bert-tiny-{miniature.TASKS[0]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERT_HOME", str(finished_home.path))
        patch.setenv("MLFLOW_TRACKING_URI", finished_home.tracking_uri)
        promote(name, config=GateConfig(waived_gates=miniature.UNFIT)).require()
    return name


@pytest.fixture(scope="session")
def user_interfaces(finished_home, champion, tmp_path_factory):
    """Dagster and MLflow over the finished run, with the miniature preset as launchpad defaults."""
    from user_interfaces import running_user_interfaces

    base = tmp_path_factory.mktemp("user-interfaces")
    settings = {"BERT_PRESET": str(miniature.write_preset(base))}
    with running_user_interfaces(finished_home.path, base / "log.txt", settings) as running:
        yield running


@pytest.fixture(scope="session")
def browser():
    """Chromium."""
    from chromium import running_chromium

    with running_chromium() as running:
        yield running


@pytest.fixture
def page(browser, request, tmp_path):
    """Page of a fresh profile; if the test fails, a screenshot is kept in its folder, which is printed."""
    from chromium import new_page

    opened = new_page(browser)
    yield opened
    if request.node.stash.get(FAILED, False):
        picture = tmp_path / "page.png"
        opened.screenshot(path=picture)
        print(f"{opened.url} when the test failed: {os.fspath(picture)}")
    opened.context.close()
