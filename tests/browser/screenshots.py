"""`make screenshots`: the pictures of README and docs, taken of a finished run in both UIs.

python tests/browser/screenshots.py --home .bert --output docs/images
"""

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from chromium import new_page, running_chromium
from dagster_pages import AssetGraph, AssetPage
from mlflow_pages import Mlflow
from PIL import Image
from playwright.sync_api import Browser, FloatRect, Page, expect
from user_interfaces import UserInterfaces, running_user_interfaces

from bert_model.cli import main as bert
from workflows.lib.resources import ASSETS, ON_REQUEST

MODEL = "bert-tiny-sst2"
ENCODER = "all-MiniLM-L6-v2"
TEXTS = ("The cat sat on the mat.", "It was soft, and the cat purred.")
COLORS = 256
LOOKS = 60
INTERVAL_MILLISECONDS = 500.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make screenshots", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--home", type=Path, required=True, help="BERT_HOME of a finished `make demo`")
    parser.add_argument("--output", type=Path, required=True, help="folder of the pictures")
    parser.add_argument(
        "--attention-model", type=Path, help="an encoder whose attention is drawn; none: no such picture"
    )
    parser.add_argument("--only", nargs="+", choices=sorted(PICTURES), help="names of pictures (default: all)")
    options = parser.parse_args(arguments)
    home = options.home.resolve()
    if not list(home.glob("data/*/report/manifest.json")):
        print(f"make screenshots: {home} holds no finished run; run `make demo` first", file=sys.stderr)
        return 2
    options.output.mkdir(parents=True, exist_ok=True)
    names = options.only or list(PICTURES)
    with tempfile.TemporaryDirectory() as scratch, running_chromium() as browser:
        with running_user_interfaces(home, Path(scratch) / "log.txt") as addresses:
            for name in names:
                keep(PICTURES[name](browser, addresses), options.output / f"{name}.png")
        if options.attention_model and not options.only:
            keep(attention(browser, options.attention_model, Path(scratch)), options.output / "attention.png")
    return 0


def asset_graph(browser: Browser, addresses: UserInterfaces) -> bytes:
    """Screenshot of the whole graph without the navigation."""
    page = new_page(browser, width=2400, height=1000)
    graph = AssetGraph(page, addresses.dagster).open()
    expect(graph.materialized()).to_have_count(len(ASSETS) - len(ON_REQUEST))
    settled(page)
    boxes = [box for part in graph.canvas.locator("foreignObject").all() if (box := part.bounding_box())]
    left, top = (min(box[key] for box in boxes) - 8 for key in ("x", "y"))
    right, bottom = (max(box[a] + box[b] for box in boxes) + 8 for a, b in (("x", "width"), ("y", "height")))
    return settled(page, FloatRect(x=left, y=top, width=right - left, height=bottom - top))


def asset_page(name: str, height: int) -> Callable[[Browser, UserInterfaces], bytes]:
    """Screenshot of an asset's page."""

    def take(browser: Browser, addresses: UserInterfaces) -> bytes:
        page = new_page(browser, width=1500, height=height)
        asset = AssetPage(page, addresses.dagster, name).open()
        page.get_by_text("Hide navigation").click()
        asset.metadata("mlflow_run").wait_for()
        return settled(page)

    return take


def mlflow_run(browser: Browser, addresses: UserInterfaces) -> bytes:
    """Screenshot of the pre-training curves."""
    page = new_page(browser, width=1500, height=940)
    mlflow = Mlflow(page, addresses.mlflow)
    mlflow.open_run("pretraining")
    mlflow.open_charts("held_out/mlm_loss")
    return settled(page)


def mlflow_model(browser: Browser, addresses: UserInterfaces) -> bytes:
    """Screenshot of a registered version with aliases and card."""
    page = new_page(browser, width=1500, height=1000)
    Mlflow(page, addresses.mlflow).open_version(MODEL, 1)
    return settled(page)


def attention(browser: Browser, model: Path, scratch: Path) -> bytes:
    """Screenshot of one head of `bert attention` that attends to the other occurrence of a repeated word."""
    path = scratch / "attention.html"
    (scratch / ENCODER).symlink_to(model.resolve())  # the page's title is the name that the model was given by
    with contextlib.chdir(scratch):
        bert(["attention", "--model", ENCODER, *TEXTS, "--output", str(path)])
    page = new_page(browser, width=1040, height=620)
    page.goto(path.as_uri())
    page.locator("#layer").select_option(label="3")
    page.locator("#head").select_option(label="10")
    return settled(page)


def settled(page: Page, clip: FloatRect | None = None) -> bytes:
    """Return a screenshot of the page once two in a row are equal."""
    page.mouse.move(0, 0)
    before = b""
    for _ in range(LOOKS):
        page.wait_for_timeout(INTERVAL_MILLISECONDS)
        picture = page.screenshot(clip=clip, animations="disabled")
        if picture == before:
            return picture
        before = picture
    raise TimeoutError(f"{page.url} does not come to rest")


def keep(picture: bytes, path: Path) -> None:
    """Write a picture with a palette; a user interface has few colors."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {image.width} x {image.height}, {path.stat().st_size / 1000:.0f} kB")


PICTURES: dict[str, Callable[[Browser, UserInterfaces], bytes]] = {
    "asset-graph": asset_graph,
    "pretrained-model": asset_page("pretrained_model", 1000),
    "report": asset_page("report", 1000),
    "mlflow-run": mlflow_run,
    "mlflow-model": mlflow_model,
}

if __name__ == "__main__":
    sys.exit(main())
