"""Scheduled retraining as the environment configures it: which wiki, from which sites, from which weights."""

import os
import time

import dagster as dg

from bert_pipeline.errors import ConfigurationError
from workflows.lib.launchpad import asset_configs, launchpad_preset
from workflows.lib.resources import DUMP_ASSETS, BertHome, dump_partitions

WIKI_VARIABLE = "BERT_WIKI"
DEFAULT_WIKI = "simplewiki"
SITES_VARIABLE = "BERT_DUMP_SITES"
START_VARIABLE = "BERT_RETRAIN_FROM"
CRON_VARIABLE = "BERT_RETRAIN_CRON"
DEFAULT_CRON = "0 3 5-28 * *"
STARTS = ("scratch", "champion")

SECONDS_PER_HOUR = 3600
MAX_RUNTIME_TAG = "dagster/max_runtime"
MAX_RETRIES_TAG = "dagster/max_retries"


def wiki() -> str:
    """The wiki whose dumps are trained on: BERT_WIKI."""
    return os.environ.get(WIKI_VARIABLE) or DEFAULT_WIKI


def dump_sites() -> tuple[str, ...]:
    """The sites that dumps are taken from: BERT_DUMP_SITES, comma-separated, or the public ones."""
    from bert_pipeline.download import SITES

    given = tuple(site.strip() for site in os.environ.get(SITES_VARIABLE, "").split(",") if site.strip())
    return given or SITES


def cron() -> str:
    """When the monthly retraining looks for the month's dump, in UTC: BERT_RETRAIN_CRON, or daily from the fifth."""
    return os.environ.get(CRON_VARIABLE) or DEFAULT_CRON


def now() -> float:
    """Seconds since 1970; the one place where automation reads the clock."""
    return time.time()


def starting_model(home: BertHome) -> str:
    """The model that a retraining continues from, pinned to its version; "" starts from random weights.

    BERT_RETRAIN_FROM says "champion" or, by default, "scratch". The first training of a preset has no champion and
    starts from scratch.
    """
    start = os.environ.get(START_VARIABLE) or STARTS[0]
    if start not in STARTS:
        raise ConfigurationError(f"{START_VARIABLE}: found {start!r}, expected {' or '.join(STARTS)}")
    if start == "scratch":
        return ""
    from bert_model.registry.registry import CHAMPION, list_models

    home.apply_environment()
    name = launchpad_preset().model_name
    champion = next((version for version in list_models(name) if CHAMPION in version.aliases), None)
    return f"models:/{name}/{champion.version}" if champion else ""


def retraining_run(dump: str, sources: list[str] | None = None, *, start: str = "") -> dg.RunRequest:
    """The run that takes a new dump from its files (or the dump site) to a registered model, once for each dump.

    With `start` it keeps that model's vocabulary and goes on from its weights.
    """
    configs = asset_configs(launchpad_preset(), sources=sources or [])
    if start:
        configs["vocabulary"] |= {"from_model": start}
        configs["pretrained_model"] |= {"initial_model": start}
    return dg.RunRequest(
        run_key=f"retrain:{dump}",
        partition_key=dump,
        run_config={"ops": {name: {"config": configs[name]} for name in DUMP_ASSETS if name in configs}},
        tags={"bert/preset": launchpad_preset().name, "bert/start": start or "scratch"},
    )


def known_dumps(instance: dg.DagsterInstance) -> set[str]:
    """The dumps that are partitions already: whoever added them has seen to their training."""
    return set(instance.get_dynamic_partitions(str(dump_partitions.name)))
