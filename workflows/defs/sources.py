"""Observable sources: the dumps that a site publishes and the official task files, outside of any home."""

import warnings
from collections.abc import Iterator

import dagster as dg

from bert_pipeline.hashes import content_sha256, file_sha256
from workflows.defs.automation import wiki_name
from workflows.defs.data import OFFICIAL_FILES, PUBLISHED_DUMPS, dump_sites
from workflows.lib.metadata import as_dagster_failures

SOURCES = {
    PUBLISHED_DUMPS: "The newest finished dump of the wiki in BERT_WIKI, on the sites in BERT_DUMP_SITES.",
    OFFICIAL_FILES: "The task files and the descriptions of own tasks in BERT_TASKS, by their hashes.",
}
with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.BetaWarning)
    observing = dg.multi_observable_source_asset(
        specs=[
            dg.AssetSpec(name, description=SOURCES[name], group_name="data", owners=["team:data"]) for name in SOURCES
        ],
        can_subset=True,
        required_resource_keys={"home"},
    )


@observing  # type: ignore[untyped-decorator]
def sources(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult]:
    """Hash the task files, and ask the dump site; what was made of an older version is shown as stale."""
    from bert_pipeline.download import newest_finished_dump

    chosen = {key.to_user_string() for key in context.selected_asset_keys}
    with as_dagster_failures():
        if OFFICIAL_FILES in chosen:
            folder = context.resources.home.tasks
            files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []
            version = content_sha256({path.relative_to(folder).as_posix(): file_sha256(path) for path in files})
            size = sum(path.stat().st_size for path in files)
            place = str(folder or "BERT_TASKS is not set")
            metadata = {"artifact/path": place, "size/files": len(files), "size/bytes": size}
            yield dg.ObserveResult(OFFICIAL_FILES, data_version=dg.DataVersion(version), metadata=metadata)
        if PUBLISHED_DUMPS in chosen:
            newest = f"{wiki_name()}-{newest_finished_dump(wiki_name(), sites=dump_sites())}"
            metadata = {"name": newest, "sites": ", ".join(dump_sites())}
            yield dg.ObserveResult(PUBLISHED_DUMPS, data_version=dg.DataVersion(newest), metadata=metadata)
