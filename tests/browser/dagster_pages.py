"""Page objects of Dagster's UI: the graph, an asset, its materialization, a run."""

import re
from typing import Self

from playwright.sync_api import Locator, Page, expect

RUN_SECONDS = 180.0


class AssetGraph:
    """The global asset lineage."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.canvas = page.locator("svg:has(foreignObject)").first

    def open(self) -> Self:
        """Open the page, and expand every group by the context menu of the canvas."""
        self.page.goto(f"{self.address}/asset-groups")
        self.canvas.wait_for()
        self.choose("Expand all groups")
        self.canvas.locator("[class*=AssetNode_assetName]").first.wait_for()
        return self

    def choose(self, item: str) -> None:
        """Choose an entry of the context menu, opened on an empty part of the canvas."""
        viewport = self.page.viewport_size
        assert viewport is not None
        self.page.mouse.click(viewport["width"] * 0.45, viewport["height"] * 0.95, button="right")
        self.page.get_by_role("menuitem", name=item).click()

    def group(self, name: str) -> Locator:
        """The heading of an unfolded group."""
        return self.canvas.get_by_text(name, exact=True).first

    def assets(self) -> list[str]:
        """Return the names on the nodes."""
        return self.canvas.locator("[class*=AssetNode_assetName]").all_inner_texts()

    def materialized(self) -> Locator:
        """Return the materialized (green) nodes; their states load after the graph."""
        return self.canvas.locator("[class*=minimalAssetNodeBox][style*=background-green]")


class AssetPage:
    """An asset's page: the overview, and the dialog of the button Materialize."""

    def __init__(self, page: Page, address: str, name: str) -> None:
        self.page = page
        self.address = address
        self.name = name

    def open(self) -> Self:
        """Open the page, and wait until the metadata is shown."""
        self.page.goto(f"{self.address}/assets/{self.name}")
        self.page.get_by_role("button", name="Materialize").first.wait_for()
        return self

    def metadata(self, key: str) -> Locator:
        """The row of an entry in the metadata table of the overview."""
        cell = self.page.locator("td", has=self.page.get_by_text(key, exact=True))
        return self.page.locator("tr").filter(has=cell).first

    def show_markdown(self, key: str) -> Locator:
        """Open the long text of an entry; return the dialog."""
        self.metadata(key).get_by_text("[Show Markdown]").click()
        dialog = self.page.get_by_role("dialog")
        dialog.wait_for()
        return dialog

    def materialize(self, partition: str) -> "RunPage":
        """Click Materialize, choose the partition, launch the run, and follow the link to it."""
        self.page.get_by_role("button", name="Materialize").first.click()
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_text("Select a partition").click()
        self.page.get_by_title(partition, exact=True).last.click()
        self.page.keyboard.press("Escape")
        dialog.get_by_role("button", name=re.compile("^Launch")).click()
        launched = self.page.get_by_text(re.compile("Launched run"))
        launched.wait_for()
        self.page.get_by_role("button", name="View").or_(self.page.get_by_role("link", name="View")).first.click()
        self.page.wait_for_url(re.compile("/runs/[0-9a-f-]{36}"))
        return RunPage(self.page)


class RunPage:
    """A run's page, which updates itself."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @property
    def run_id(self) -> str:
        """The run's id, from the address."""
        found = re.search("/runs/([0-9a-f-]{36})", self.page.url)
        assert found is not None, self.page.url
        return found[1]

    def expect_success(self) -> None:
        """Wait until the page shows the run as successful; fail at once if it failed."""
        ended = self.page.get_by_text(re.compile("^(Success|Failure|Canceled)$")).first
        ended.wait_for(timeout=1000 * RUN_SECONDS)
        expect(ended).to_have_text("Success")
