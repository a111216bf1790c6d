"""Observable sources: the dumps that a site publishes and the official task files, outside of any home."""

import warnings
from collections.abc import Iterator

import dagster as dg

from bert_pipeline.hashes import content_sha256, file_sha256
from workflows.defs.automation import wiki_name
from workflows.defs.data import OFFICIAL_FILES, PUBLISHED_DUMPS, dump_sites
from workflows.lib.metadata import as_dagster_failures
from workflows.lib.resources import TASKS_VARIABLE

SOURCES = {
    PUBLISHED_DUMPS: "The newest finished dump of the wiki in BERT_WIKI, on the sites in BERT_DUMP_SITES.",
    OFFICIAL_FILES: "The task files and the descriptions of own tasks in BERT_TASKS, by their hashes.",
}


with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.BetaWarning)
    observing = dg.multi_observable_source_asset(
        specs=[
            dg.AssetSpec(name, description=text, group_name="data", owners=["team:data"])
            for name, text in SOURCES.items()
        ],
        can_subset=True,
        required_resource_keys={"home"},
    )


@observing  # type: ignore[untyped-decorator]
def sources(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult]:
    """Ask the dump site, and hash the task files; what is made of an older version is shown as stale."""
    from bert_pipeline.download import newest_finished_dump

    chosen = {key.to_user_string() for key in context.selected_asset_keys}
    with as_dagster_failures():
        if OFFICIAL_FILES in chosen:
            folder = context.resources.home.tasks
            files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []
            hashes = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}
            size = sum(path.stat().st_size for path in files)
            metadata = {"path": str(folder or f"{TASKS_VARIABLE} is not set"), "files": len(files), "bytes": size}
            yield _observed(OFFICIAL_FILES, content_sha256(hashes), metadata)
        if PUBLISHED_DUMPS in chosen:
            newest = f"{wiki_name()}-{newest_finished_dump(wiki_name(), sites=dump_sites())}"
            yield _observed(PUBLISHED_DUMPS, newest, {"name": newest, "sites": ", ".join(dump_sites())})


def _observed(name: str, version: str, metadata: dict[str, str | int]) -> dg.ObserveResult:
    return dg.ObserveResult(asset_key=name, data_version=dg.DataVersion(version), metadata=metadata)
