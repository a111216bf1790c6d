"""Page objects of MLflow's UI: the runs of an experiment, the metrics of a run, the versions of a model."""

import re

from playwright.sync_api import Locator, Page


class Mlflow:
    """The UI at an address, opened as a user does, who chooses the mode for trained models once."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        page.goto(address)
        page.get_by_text("Model training", exact=True).first.click()
        page.get_by_role("link", name="Model registry").wait_for()
        page.get_by_role("button", name="Close", exact=True).click()  # the assistant beside the page

    def open_experiment(self, name: str) -> Locator:
        """Open the runs of an experiment from the list; return the links to them."""
        self.page.goto(f"{self.address}/#/experiments")
        self.page.get_by_role("link", name=name, exact=True).click()
        links = self.page.locator("a[href*='/runs/']")
        links.first.wait_for()
        return links

    def open_models(self, experiment: str) -> None:
        """Open the table of an experiment's models."""
        self.open_experiment(experiment)
        self.page.get_by_role("link", name="Models", exact=True).click()

    def open_run(self, experiment: str) -> None:
        """Open the newest run of an experiment, and wait for its metrics."""
        self.open_experiment(experiment).first.click()
        self.page.get_by_role("tab", name="Overview").wait_for()

    def metric(self, name: str) -> Locator:
        """The row of a metric in a run's overview."""
        return self.page.get_by_role("row").filter(has=self.page.get_by_role("link", name=name, exact=True))

    def open_charts(self, metric: str) -> None:
        """Click the tab with the curves of a run, and wait until that of a metric is drawn."""
        self.page.get_by_role("tab", name="Model metrics").click()
        # Charts of other groups come first, and only those in sight are drawn.
        self.page.get_by_placeholder("Search metric charts").fill(metric)
        self.page.get_by_text(re.compile(rf"\({re.escape(metric)}\)")).first.wait_for()
        self.page.locator(".plot-container .trace").first.wait_for(state="attached")

    def open_artifact(self, name: str) -> None:
        """Click a file in the tab Artifacts of a run."""
        self.page.get_by_role("tab", name="Artifacts").click()
        self.page.get_by_text(name, exact=True).click()

    def compare_newest_runs(self, experiment: str) -> None:
        """Select the two newest runs of an experiment and open the page that compares them."""
        self.open_experiment(experiment)
        for _ in range(2):  # the name of a box tells whether it is checked
            self.page.get_by_role("checkbox", name=re.compile(r"row selection \(unchecked\)")).first.click()
        self.page.get_by_role("button", name="Compare").click()
        self.page.wait_for_url(re.compile("compare-runs"))

    def open_model(self, name: str) -> None:
        """The page of a registered model, with its versions."""
        self.page.goto(f"{self.address}/#/models/{name}")
        self.version(1).wait_for()

    def open_version(self, name: str, version: int) -> None:
        """The page of one version: aliases, card and tags."""
        self.page.goto(f"{self.address}/#/models/{name}/versions/{version}")
        self.page.get_by_role("heading", name=f"Version {version}").wait_for()

    def version(self, number: int) -> Locator:
        """The row of a version in a registered model's page."""
        link = self.page.get_by_role("link", name=f"Version {number}", exact=True)
        return self.page.get_by_role("row").filter(has=link)
