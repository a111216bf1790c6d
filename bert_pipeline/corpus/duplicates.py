"""Duplicates and held-out documents: what becomes of each document, from the statistics of all batches.

Tasks for the workers compare documents, each those whose hash falls into one part of all hashes. `decide` then holds
the duplicates that they found, and three bytes for each document, but no statistics of more than one batch.

Of documents with one id the latest revision is kept, of documents with equal sentences the first, and of near
duplicates, where that is asked for, the first. Documents that are similar to each other, or that consist of passages
of each other, are in one split, so that no held-out text is near a training document or copied from some.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_pipeline.atomic import replace_text
from bert_pipeline.corpus.batches import PageBatch, read_statistics
from bert_pipeline.corpus.near_duplicates import (
    Comparison,
    TextGroups,
    find_pairs,
    group_pairs,
    join,
    plan_band_tasks,
    read_by_batch,
    unpack_pairs,
)
from bert_pipeline.corpus.splits import CorpusConfig
from bert_pipeline.storage import open_binary

CODES = ("same text", "train", "held_out", "same id", "near duplicate")
"""What becomes of a document: its split, or why it is dropped as a duplicate."""
SAME_TEXT, TRAIN, HELD_OUT, SAME_ID, NEAR = range(len(CODES))
_CONTAINED_SHARE = 0.7
"""Share of a document's words, in passages that are near to those of other documents, that ties it to their split."""
_MAX_HELD_OUT_GROUP = 10
_DOCUMENTS_PER_TASK = 1 << 20
_BATCH_LIST = "batches.json"
_KEYS = {"id": ("id",), "text": ("digest_low", "digest_high")}


@dataclasses.dataclass(frozen=True)
class Found:
    """What a task found."""

    by: str
    """"id", "text", or "near" of a band."""
    values: np.ndarray
    """near: packed pairs (M,) of similar texts. Otherwise (M, 2) int64: each of several equal documents, and the first
    of them, which of those with one id has the latest revision. Documents are numbered over all batches."""


def write_batch_list(batches: Sequence[PageBatch], directory: Path) -> None:
    """Write what every comparison reads of all batches, which are in order: their stems and numbers of texts.

    A corpus of 100 GB has 25,000 batches and 1,500 comparisons, too many for each task to carry the list.
    """
    lists = {"stems": [batch.stem for batch in batches], "bounds": _text_bounds(batches).tolist()}
    replace_text(directory / _BATCH_LIST, json.dumps(lists))


def plan_comparisons(batches: Sequence[PageBatch]) -> list[Comparison]:
    """Plan the comparisons of the documents of all batches for workers with bounded memory."""
    num_parts = 1 + sum(batch.documents for batch in batches) // _DOCUMENTS_PER_TASK
    equal = [Comparison(by=by, part=part, num_parts=num_parts) for by in ("id", "text") for part in range(num_parts)]
    return [*equal, *plan_band_tasks(int(_text_bounds(batches)[-1]))]


def _text_bounds(batches: Sequence[PageBatch]) -> np.ndarray:
    """Return the number (B + 1,) of the first text of each of B batches, and that of all texts."""
    return np.cumsum([0, *(batch.texts for batch in batches)])


def compare(task: Comparison, directory: Path) -> Found:
    """Carry out one comparison, of the batches that `write_batch_list` wrote."""
    with open_binary(directory / _BATCH_LIST) as stream:
        lists = json.load(stream)
    if isinstance(task.by, int):
        return Found("near", find_pairs(task, lists["stems"], np.array(lists["bounds"]), directory))
    return Found(task.by, find_equal(task, lists["stems"], directory))


def find_equal(task: Comparison, stems: Sequence[str], directory: Path) -> np.ndarray:
    """Return the documents that are equal to another one, and the first of each (M, 2), int64."""
    names = (*_KEYS[str(task.by)], "revision")
    columns: list[list[np.ndarray]] = [[] for _ in (*names, "number")]
    start = 0
    for stem in stems:
        statistics = read_statistics(stem, directory)
        rows = np.flatnonzero(statistics[names[0]] % np.uint64(task.num_parts) == task.part)
        for column, values in zip(columns, (*(statistics[name][rows] for name in names), start + rows)):
            column.append(values)
        start += len(statistics)
    *keys, revision, number = (np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64) for parts in columns)
    # Equal ones become neighbors, of equal ids the latest revision first, and of equal revisions the first document.
    order = np.lexsort((-revision, *keys) if task.by == "id" else keys)
    number = number[order]
    is_equal = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
    is_second = np.concatenate([[False], is_equal])[: len(number)]
    first = number[np.maximum.accumulate(np.where(is_second, 0, np.arange(len(number))))]
    is_grouped = is_second | np.concatenate([is_second[1:], [False]])[: len(number)]
    groups: np.ndarray = np.column_stack([number, first])[is_grouped].astype(np.int64)
    return groups


@dataclasses.dataclass(frozen=True)
class Decisions:
    """What becomes of N documents."""

    codes: np.ndarray
    """(N,) uint8: an index into `CODES` for each document."""
    resembled: np.ndarray
    """(K, 2) int64: the documents dropped for the same or a near text, and what is kept in their place; ascending."""
    dropped: dict[str, int]
    """Dropped documents by reason."""
    near_duplicates: dict[str, int]
    """Near-duplicate documents and passages, dropped or not."""


def decide(batches: Sequence[PageBatch], found: Sequence[Found], config: CorpusConfig, directory: Path) -> Decisions:
    """Decide what becomes of the N documents of all batches, which are in order, given what all tasks found."""
    stems = [batch.stem for batch in batches]
    bounds = np.cumsum([0, *(batch.documents for batch in batches)])
    kept = np.ones(bounds[-1], dtype=bool)

    # Same id: all but the first of each id are superseded. Same text: of the rest, all but the first are repetitions.
    same_id = _equal(found, "id", kept)[:, 0]
    kept[same_id] = False
    same_text = _equal(found, "text", kept)
    kept[same_text[:, 0]] = False
    dropped = {"same id": len(same_id), "same text": len(same_text)}

    # Near text: all but the first of each group, where that is asked for.
    # Most pairs are found by several tasks.
    packed = [item.values for item in found if item.by == "near"]
    all_pairs, are_near = unpack_pairs(np.unique(np.concatenate([np.zeros(0, dtype=np.uint64), *packed])))
    text_bounds = _text_bounds(batches)
    near_texts = group_pairs(all_pairs[are_near], stems, text_bounds, directory)
    members, row, group = group_documents(near_texts, bounds)
    first = first_kept(group, kept[members])
    is_near = kept[members] & (first != np.arange(len(members)))
    stays = kept[members] & ~is_near
    # Passages that are near to an earlier one
    passages = near_texts.group[(near_texts.passage >= 0) & stays[row]]
    near_duplicates = {"documents": int(is_near.sum()), "passages": len(passages) - len(np.unique(passages))}
    if config.near_duplicates == "keep":
        is_near[:] = False
    else:
        dropped["near duplicate"] = int(is_near.sum())
    kept[members[is_near]] = False

    similar = group_pairs(all_pairs, stems, text_bounds, directory)
    codes = _split(similar, kept, stems, bounds, config, directory)
    codes[same_id] = SAME_ID
    codes[members[is_near]] = NEAR
    near = np.column_stack([members, members[first]])[is_near]
    in_place_of = dict(near.tolist())  # what stays of a text may be a near duplicate itself
    same_text[:, 1] = [in_place_of.get(number, number) for number in same_text[:, 1].tolist()]
    resembled = np.concatenate([same_text, near])
    return Decisions(
        codes=codes, resembled=resembled[np.argsort(resembled[:, 0])], dropped=dropped, near_duplicates=near_duplicates
    )


def _equal(found: Sequence[Found], by: str, kept: np.ndarray) -> np.ndarray:
    """Return the documents, among the `kept` (N,), that repeat another one, and the one that stays (M, 2)."""
    groups = np.concatenate([np.zeros((0, 2), dtype=np.int64), *(item.values for item in found if item.by == by)])
    if by == "text":  # the first of a text may have been dropped for its id; then the next one stays
        groups = groups[kept[groups[:, 0]]]
        groups = groups[np.lexsort(groups.T)]
        _, first, group = np.unique(groups[:, 1], return_index=True, return_inverse=True)
        groups[:, 1] = groups[first[group], 0]
    repeated: np.ndarray = groups[groups[:, 0] != groups[:, 1]]
    return repeated


def _split(
    texts: TextGroups, kept: np.ndarray, stems: Sequence[str], bounds: np.ndarray, config: CorpusConfig, directory: Path
) -> np.ndarray:
    """Return an index into `CODES` (N,) for each document, as uint8: its split, or `SAME_TEXT` for those not `kept`.

    `texts` are those that are similar to another one: their documents have one split, that of the first, so that none
    is held out in vain. So have documents that consist of passages of each other.
    """
    members, row, group = group_documents(texts, bounds)
    words = read_by_batch(members, stems, bounds, lambda stem, rows: read_statistics(stem, directory)["words"][rows])
    num_words = np.concatenate([np.zeros(0, dtype=np.int64), *words])
    joined, must_be_trained = find_contained(texts, row, group, kept[members], num_words)
    pairs = np.concatenate([np.column_stack([np.arange(len(members)), group]), joined])
    first = first_kept(join(pairs, len(members)), kept[members])
    is_single = kept.copy()
    is_single[members] = False
    codes = np.full(len(kept), SAME_TEXT, dtype=np.uint8)
    ids = [np.zeros(0, dtype=np.uint64)]
    ends: list[tuple[int, int, int]] = []
    for stem, start, stop in zip(stems, bounds, bounds[1:]):
        of_batch = read_statistics(stem, directory)["id"]
        ids.append(of_batch[members[slice(*np.searchsorted(members, [start, stop]))] - start])
        singles = np.flatnonzero(is_single[start:stop])
        if len(singles):
            bucket = of_batch[singles] % 1000
            codes[start + singles] = np.where(bucket < config.held_out_per_mille, HELD_OUT, TRAIN)
            order = np.lexsort((of_batch[singles], bucket))[[0, -1]]
            ends += zip(bucket[order].tolist(), of_batch[singles[order]].tolist(), (start + singles[order]).tolist())
            ends = [min(ends), max(ends)]

    # The documents of the least and of the greatest bucket stand for all that are similar to none: they decide whether
    # one of those, or all, are held out, and which one fills an empty split.
    alone = sorted(set(ends))
    documents = np.concatenate([members, np.array([number for *_, number in alone], dtype=np.int64)])
    ids_of_first = np.concatenate([np.concatenate(ids)[first], np.array([id_ for _, id_, _ in alone], dtype=np.uint64)])
    is_trained = np.concatenate([must_be_trained, np.zeros(len(alone), dtype=bool)])
    rows = np.flatnonzero(kept[documents])
    codes[documents[rows]] = split_codes(
        ids_of_first[rows], config.held_out_per_mille, num_kept=int(kept.sum()), is_trained=is_trained[rows]
    )
    return codes


def find_contained(
    texts: TextGroups, row: np.ndarray, group: np.ndarray, kept: np.ndarray, num_words: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the documents, among the `kept` (N,) of N, that mostly consist of passages of other groups of documents.

    `row` (V,) is the document of each text; `group` (N,) is the first document of the group of each document, and
    `num_words` (N,) are its words. A passage of few groups joins them if it is in a document that has little else.
    Boilerplate joins nothing: a thousand documents have no one split for a stub that has little else.
    Returns pairs (M, 2) int64 of documents that must be in one split, and which documents (N,) bool must be in the
    training split, because their passages are in too many documents to join them.
    """
    is_passage = (texts.passage >= 0) & kept[row]
    passage, document, words = texts.group[is_passage], row[is_passage], texts.words[is_passage]
    # Each group of passages with the groups of documents that it is in, in order.
    passage_of, group_of = np.divmod(np.unique(passage * len(kept) + group[document]), max(1, len(kept)))
    num_groups = np.bincount(passage_of, minlength=len(row))

    is_shared = num_groups[passage] > 1
    num_shared = np.bincount(document[is_shared], weights=words[is_shared], minlength=len(kept))
    is_contained = (num_shared > 0) & (num_shared >= _CONTAINED_SHARE * num_words)

    is_common = num_groups > _MAX_HELD_OUT_GROUP
    concerned = is_shared & is_contained[document]
    is_trained = np.zeros(len(kept), dtype=bool)
    is_trained[document[concerned & is_common[passage]]] = True
    joins = np.zeros(len(row), dtype=bool)
    joins[passage[concerned]] = True
    is_joining = (joins & ~is_common)[passage_of]
    passage_of, group_of = passage_of[is_joining], group_of[is_joining]
    first = np.flatnonzero(np.diff(passage_of, prepend=-1))
    pairs = np.column_stack([group_of, np.repeat(group_of[first], np.diff(first, append=len(group_of)))])
    return pairs, is_trained


def group_documents(texts: TextGroups, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the documents (G,) of V texts, the row of each text's document (V,), and of each group's first one (G,).

    Documents that are dropped for another reason still join the others of a group.
    """
    members, row = np.unique(bounds[texts.batch] + texts.document, return_inverse=True)
    is_document = texts.passage < 0
    group = np.arange(len(members))
    group[row[is_document]] = row[texts.group[is_document]]
    return members, row, group


def first_kept(group: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return the first of the `kept` (N,) documents in the `group` (N,) of each; dropped ones have themselves."""
    everything = np.arange(len(kept))
    first = np.full(len(kept), len(kept))
    np.minimum.at(first, group[kept], everything[kept])
    return np.where(kept, first[group], everything)


def split_codes(ids: np.ndarray, held_out_per_mille: int, *, num_kept: int, is_trained: np.ndarray) -> np.ndarray:
    """Return an index into `CODES` for each of N documents, as uint8 (N,); similar documents have the id of the first.

    Each split gets at least one document if there are two that are not similar. `num_kept` is the number of all kept
    documents, of which these are some. A group with one of the documents that `is_trained` (N,) names is only held out
    where that split would be empty.
    """
    first, group, sizes = np.unique(ids, return_inverse=True, return_counts=True)  # (G,), (N,), (G,)
    # A group goes to its split as a whole: the stubs of a bot would be most of the held-out documents.
    is_large = sizes > max(_MAX_HELD_OUT_GROUP, num_kept * held_out_per_mille // 1000)
    is_large[group[is_trained]] = True
    is_held_out = (first % 1000 < held_out_per_mille) & ~is_large
    # A small corpus may leave a split empty: the group with the nearest bucket fills it, or the smallest large one.
    if held_out_per_mille and num_kept >= 2:
        order = np.lexsort((first, first % 1000, np.where(is_large, sizes, 0)))
        if is_held_out.all():
            is_held_out[order[-1]] = False
        elif not is_held_out.any() and len(first) >= 2:
            is_held_out[order[0]] = True
    return np.where(is_held_out[group], HELD_OUT, TRAIN).astype(np.uint8)
