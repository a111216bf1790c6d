"""Records that fail: one page, row, line or document that the code cannot digest is set aside, and the job goes on."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bert_pipeline.atomic import replace_text
from bert_pipeline.errors import BertError, InputError
from bert_pipeline.manifest import Draft
from bert_pipeline.storage import failure_of

logger = logging.getLogger(__name__)

DROPPED_NAME = "dropped.tsv"
"""File of an artifact that lists every record without output, with the reason."""
DROPPED_HEADER = "document_id\treason\ttitle\n"
FAILED = "failed"
"""What a failed record is counted and listed as."""
MAX_NAMED = 3
"""Failed records that a message names."""
_MIN_LIMIT = 20
_RECORDS_PER_FAILURE = 1000
_MAX_CHARACTERS = 300
_OTHERS = (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, OSError, BertError)
_OF_THE_DEVICE = re.compile("OutOfMemoryError|AcceleratorError|out of memory|allocate memory")
"""Exceptions of torch, which have no class here: memory, and a GPU that does not go on after an error."""


def failure(error: BaseException) -> str:
    """Return in one line what failed about a record; raise the exception again if it is not about the record.

    The end of the process, memory, files and stores are not, nor is a `BertError`, which tells the user what to do. All
    else is, such as a panic of an extension: it is no `Exception` and cannot be pickled, so its text leaves the worker.
    """
    reason = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    is_of_the_device = isinstance(error, RuntimeError) and _OF_THE_DEVICE.search(reason)
    if isinstance(error, _OTHERS) or is_of_the_device or failure_of(error):
        raise error
    return reason[:_MAX_CHARACTERS].encode(errors="backslashreplace").decode()


def check_failures(what: str, number: int, total: int, named: Sequence[str]) -> str:
    """Return one sentence about the failed ones among `total` records, which names the first; "" if none failed.

    InputError if they are more than one in a thousand and than 20, or half of all.
    """
    if not number:
        return ""
    limit = max(_MIN_LIMIT, total // _RECORDS_PER_FAILURE)
    summary = f"{number:,} of {total:,} {what} failed"
    first = "; ".join(named[:MAX_NAMED])
    if number > limit or 2 * number >= total:
        raise InputError(
            f"{summary}, expected at most {min(limit, (total - 1) // 2):,}: nothing was published; correct them or "
            f"leave them out of the input, or report the error; the first: {first}"
        )
    return f"{summary} and are left out; the first: {first}"


def dropped_line(document_id: str, reason: str, title: str) -> str:
    """Format one line of the list of records without output."""
    # Ids and titles of records may hold tabs and line ends.
    return f"{' '.join(document_id.split())}\t{reason}\t{' '.join(title.split())}\n"


def record_failures(draft: Draft, results: Sequence[Mapping[str, Any]]) -> None:
    """List documents of a corpus that failed in an artifact made of it, count them and warn.

    Each of the `results` has the number of its documents ("rows"), and (id, reason) of those that "failed". Nothing is
    written if none failed. InputError if they are too many (`check_failures`).
    """
    rows = sorted(tuple(document) for result in results for document in result["failed"])
    total = sum(result["rows"] for result in results)
    if warning := check_failures("documents", len(rows), total, [f"{key} ({reason})" for key, reason in rows]):
        logger.warning("%s (%s lists them)", warning, DROPPED_NAME)
        lines = (dropped_line(key, f"{FAILED}: {reason}", "") for key, reason in rows)
        replace_text(draft.path / DROPPED_NAME, DROPPED_HEADER + "".join(lines))
        draft.files_without_rows.add(DROPPED_NAME)
        draft.counts[FAILED] = len(rows)
