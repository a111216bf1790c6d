"""Duplicates and held-out documents: what becomes of each document, from the statistics of all batches.

Of documents with one id the latest revision is kept, of documents with equal sentences the first, and of near
duplicates, where that is asked for, the first. Documents that are similar to each other are in one split, so that no
held-out text is near a training document.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_pipeline.corpus.near_duplicates import TextGroups, group_pairs, unpack_pairs
from bert_pipeline.corpus.splits import CorpusConfig

CODES = ("same text", "train", "held_out", "same id", "near duplicate")
"""What becomes of a document: its split, or why it is dropped as a duplicate."""
SAME_TEXT, TRAIN, HELD_OUT, SAME_ID, NEAR = range(len(CODES))
_MAX_HELD_OUT_GROUP = 10


@dataclasses.dataclass(frozen=True)
class Decisions:
    """What becomes of N documents."""

    codes: np.ndarray
    """(N,) uint8: an index into `CODES` for each document."""
    resembled: np.ndarray
    """(N,) int64: the document that is kept in place of a near duplicate; itself for others."""
    passages: np.ndarray
    """(M, 2) int64: documents and passages of them that are dropped; ascending."""
    dropped: dict[str, int]
    """Dropped documents by reason."""
    near_duplicates: dict[str, int]
    """Near-duplicate documents and passages, dropped or not."""


def decide(
    documents: np.ndarray,
    bounds: np.ndarray,
    pairs: Sequence[np.ndarray],
    stems: Sequence[str],
    config: CorpusConfig,
    directory: Path,
) -> Decisions:
    """Decide what becomes of N documents with their statistics (N,).

    `bounds` (B + 1,) are those of the B batches among the documents, `stems` the names of the batches in `directory`,
    and `pairs` the packed pairs (M,) of similar texts that each task found.
    """
    kept = np.ones(len(documents), dtype=bool)

    # Same id: sorted by id and falling revision, all but the first of each id are superseded.
    by_id = np.lexsort((-documents["revision"], documents["id"]))  # stable: of equal revisions the first is kept
    ids = documents["id"][by_id]
    kept[by_id[1:][ids[1:] == ids[:-1]]] = False
    is_same_id = ~kept

    # Same text: of the remaining documents, all but the first of each digest are repetitions.
    rest = np.flatnonzero(kept)
    high, low = documents["digest_high"][rest], documents["digest_low"][rest]
    by_digest = np.lexsort((low, high))
    same = (high[by_digest][1:] == high[by_digest][:-1]) & (low[by_digest][1:] == low[by_digest][:-1])
    kept[rest[by_digest[1:][same]]] = False
    num_same_id = int(is_same_id.sum())
    dropped = {"same id": num_same_id, "same text": int((~kept).sum()) - num_same_id}

    # Near text: all but the first of each group, where that is asked for.
    # Most pairs are found by several tasks.
    all_pairs, are_near = unpack_pairs(np.unique(np.concatenate([np.zeros(0, dtype=np.uint64), *pairs])))
    near_texts = group_pairs(all_pairs[are_near], stems, directory)
    near = find_near(near_texts, bounds, kept, documents)
    is_near = kept & (near.first != np.arange(len(documents)))
    found = {"documents": int(is_near.sum()), "passages": len(near.passages)}
    drops_passages = config.near_duplicates == "drop-passages"
    if drops_passages:
        is_near |= near.has_no_passage
    if config.near_duplicates != "keep":
        kept &= ~is_near
        dropped["near duplicate"] = int(is_near.sum())

    # Documents that are similar to each other have one split, that of the first, so that none is held out in vain. All
    # dropped documents are first coded as "same text"; the others get their code after.
    similar = first_documents(group_pairs(all_pairs, stems, directory), bounds, kept)
    codes = split_codes(documents["id"][similar], kept, config.held_out_per_mille)  # (N,)
    codes[is_same_id] = SAME_ID
    if config.near_duplicates != "keep":
        codes[is_near] = NEAR
    passages = near.passages[kept[near.passages[:, 0]]] if drops_passages else near.passages[:0]
    return Decisions(codes=codes, resembled=near.resembled, passages=passages, dropped=dropped, near_duplicates=found)


@dataclasses.dataclass(frozen=True)
class NearDocuments:
    """What the near texts of a corpus mean for its N documents."""

    first: np.ndarray
    """(N,) int64: the first kept document of the group; the document itself where it is near to none."""
    passages: np.ndarray
    """(M, 2) int64: documents and passages that are near to an earlier one; ascending, without near documents."""
    has_no_passage: np.ndarray
    """(N,) bool: all passages of the document are among those."""
    resembled: np.ndarray
    """(N,) int64: `first`, or of a document without passages the document that has its first one."""


def first_documents(texts: TextGroups, bounds: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return the first one (N,) of the group of each of N documents, among the `kept` (N,); itself if it is in none.

    `bounds` (B + 1,) are those of the B batches among the documents.
    """
    row = bounds[texts.batch] + texts.document  # (V,)
    is_document = texts.passage < 0
    everything = np.arange(len(kept))
    # Documents that are dropped for another reason still join the others of a group.
    group = everything.copy()
    group[row[is_document]] = row[texts.group[is_document]]
    first = np.full(len(kept), len(kept))
    np.minimum.at(first, group[kept], everything[kept])
    return np.where(kept, first[group], everything)


def find_near(texts: TextGroups, bounds: np.ndarray, kept: np.ndarray, documents: np.ndarray) -> NearDocuments:
    """Choose the first text of each group, among the `kept` (N,) of N documents with their statistics (N,)."""
    first = first_documents(texts, bounds, kept)
    stays = kept & (first == np.arange(len(kept)))

    # Passages: the first one in a document that stays, near documents being counted with their passages.
    row = bounds[texts.batch] + texts.document  # (V,)
    index = np.arange(len(row))
    is_passage = (texts.passage >= 0) & stays[row]
    first_passage = np.full(len(row), len(row))
    np.minimum.at(first_passage, texts.group[is_passage], index[is_passage])
    is_repeated = is_passage & (first_passage[texts.group] < index)
    passages = np.column_stack([row[is_repeated], texts.passage[is_repeated]])
    has_no_passage = np.bincount(passages[:, 0], minlength=len(kept)) == documents["passages"]
    resembled = first.copy()
    lost = np.flatnonzero(is_repeated & has_no_passage[row] & (texts.passage == 0))
    resembled[row[lost]] = row[first_passage[texts.group[lost]]]
    return NearDocuments(first=first, passages=passages, has_no_passage=has_no_passage, resembled=resembled)


def split_codes(ids: np.ndarray, kept: np.ndarray, held_out_per_mille: int) -> np.ndarray:
    """Return an index into `CODES` for each of N documents, as uint8 (N,); similar documents have the id of the first.

    Each split gets at least one document if there are two that are not similar.
    """
    codes = np.full(len(ids), SAME_TEXT, dtype=np.uint8)
    rows = np.flatnonzero(kept)
    first, group, sizes = np.unique(ids[rows], return_inverse=True, return_counts=True)  # (G,), (len(rows),), (G,)
    # A group goes to its split as a whole: the stubs of a bot would be most of the held-out documents.
    is_large = sizes > max(_MAX_HELD_OUT_GROUP, len(rows) * held_out_per_mille // 1000)
    is_held_out = (first % 1000 < held_out_per_mille) & ~is_large
    # A small corpus may leave a split empty: the group with the nearest bucket fills it, or the smallest large one.
    if held_out_per_mille and len(rows) >= 2:
        order = np.lexsort((first, first % 1000, np.where(is_large, sizes, 0)))
        if is_held_out.all():
            is_held_out[order[-1]] = False
        elif not is_held_out.any() and len(first) >= 2:
            is_held_out[order[0]] = True
    codes[rows] = np.where(is_held_out[group], HELD_OUT, TRAIN)
    return codes
