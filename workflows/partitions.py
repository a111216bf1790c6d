"""Partitions: a dump is a dynamic partition, a task a static one; fine-tuning stands on both."""

import re
from collections.abc import Sequence

import dagster as dg

from bert_pipeline.errors import UsageError

TASK_NAMES = (
    "cola",
    "sst2",
    "mrpc",
    "stsb",
    "qqp",
    "mnli",
    "qnli",
    "rte",
    "wnli",
    "squad1",
    "squad2",
    "swag",
    "ner",
    "ner_features",
)
"""Every task of the paper, in the order of its tables."""

DEFAULT_DUMP = "samplewiki-1"
"""The generated sample encyclopaedia: the partition that needs no file and no network."""

SAMPLE_DUMP = re.compile(r"samplewiki-(\d{1,9})")
_DUMP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

dump_partitions = dg.DynamicPartitionsDefinition(name="dump")
task_partitions = dg.StaticPartitionsDefinition(list(TASK_NAMES))
dump_task_partitions = dg.MultiPartitionsDefinition({"dump": dump_partitions, "task": task_partitions})


def checked_dump_name(name: str) -> str:
    """Return `name` if it can name a partition and a directory; UsageError otherwise."""
    if not _DUMP_NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"dump {name!r}: expected letters, digits, dots, dashes and underscores, such as enwiki-20261101"
        )
    return name


def sample_seed(dump: str) -> int | None:
    """The seed of the generated sample that `dump` names; None for a real dump."""
    match = SAMPLE_DUMP.fullmatch(dump)
    return int(match[1]) if match else None


def dump_task_key(dump: str, task: str) -> dg.MultiPartitionKey:
    """The partition of one task over one dump."""
    return dg.MultiPartitionKey({"dump": dump, "task": task})


def dump_and_task(partition_key: str) -> tuple[str, str]:
    """Take a partition of `dump_task_partitions` apart."""
    dimensions = dump_task_partitions.get_partition_key_from_str(str(partition_key)).keys_by_dimension
    return dimensions["dump"], dimensions["task"]


def checked_tasks(names: Sequence[str]) -> tuple[str, ...]:
    """Return the task names in the tables' order; UsageError for an unknown one."""
    from bert_pipeline.errors import suggest

    for name in names:
        if name not in TASK_NAMES:
            raise UsageError(f"task {name!r} is not known{suggest(name, TASK_NAMES)}")
    return tuple(name for name in TASK_NAMES if name in names)
