"""Encode the examples of every kind of task as rows of token ids (paper, section 4 and figure 4).

Texts longer than a row become several windows: with a stride for SQuAD, at word boundaries and with context for
tagging.
"""

import itertools
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_model.finetuning.config import FinetuningConfig
from bert_model.finetuning.dataset import EncodedSet, RowCollector
from bert_model.model.config import IGNORED_LABEL
from bert_pipeline.errors import InputError, UsageError, suggest
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.example import ChoiceExample, SpanExample, TaggedExample, TextExample
from bert_pipeline.tasks.ner import documents
from bert_pipeline.vocabulary.tokenizer import Tokenizer


def encode_examples(task: Task, examples: Sequence[Any], tokenizer: Tokenizer, config: FinetuningConfig) -> EncodedSet:
    """Encode a split of any task. Labels, answers and tags are encoded if every example has them.

    InputError if the split is empty or a label is not one of the task's.
    """
    if not examples:
        raise InputError(f"{task.name}: a split without examples; check the file")
    encode = _ENCODERS.get(task.kind)
    if encode is None:
        raise UsageError(f"{task.name}: unknown kind of task {task.kind!r}{suggest(task.kind, _ENCODERS)}")
    return encode(task, examples, tokenizer, config)


def encode_texts(pairs: Sequence[tuple[str, str | None]], tokenizer: Tokenizer, max_seq_length: int) -> EncodedSet:
    """Encode texts or pairs of texts without labels: `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`."""
    return _encode_pairs(pairs, tokenizer, max_seq_length).close("classification", len(pairs), {})


def _encode_text(
    task: Task, examples: Sequence[TextExample], tokenizer: Tokenizer, config: FinetuningConfig
) -> EncodedSet:
    collector = _encode_pairs([(e.text_a, e.text_b) for e in examples], tokenizer, config.max_seq_length)
    columns: dict[str, np.ndarray] = {}
    if all(example.label is not None for example in examples):
        if task.kind == "regression":
            columns["labels"] = np.asarray([float(e.label) for e in examples], dtype=np.float32)  # type: ignore[arg-type]
        elif task.kind == "multilabel":  # (N, labels)
            columns["labels"] = np.asarray([[x in e.label for x in task.labels] for e in examples], dtype=np.float32)  # type: ignore[operator]
        else:
            columns["labels"] = _class_labels(task, examples)
    return collector.close(task.kind, len(examples), columns)


def _class_labels(task: Task, examples: Sequence[TextExample]) -> np.ndarray:
    index = {label: number for number, label in enumerate(task.labels)}
    labels = []
    for example in examples:
        label = str(example.label)
        if label not in index:
            allowed = ", ".join(task.labels)
            raise InputError(f"{task.name}: example {example.example_id} has the label {label!r}, expected {allowed}")
        labels.append(index[label])
    return np.asarray(labels, dtype=np.int64)


def _encode_choice(
    task: Task, examples: Sequence[ChoiceExample], tokenizer: Tokenizer, config: FinetuningConfig
) -> EncodedSet:
    count = len(examples[0].endings)
    for example in examples:
        if len(example.endings) != count:
            raise InputError(
                f"{task.name}: example {example.example_id} has {len(example.endings)} endings, expected {count} as "
                f"the first example has"
            )

    # The rows of an example follow one another, which `rows_per_example` relies on.
    pairs: list[tuple[str, str | None]] = [(e.context, ending) for e in examples for ending in e.endings]
    collector = _encode_pairs(pairs, tokenizer, config.max_seq_length, rows_per_example=count)
    columns: dict[str, np.ndarray] = {}
    if all(example.label is not None for example in examples):
        columns["labels"] = np.asarray([example.label for example in examples], dtype=np.int64)
    return collector.close("choice", len(examples), columns, rows_per_example=count)


def _encode_pairs(
    pairs: Sequence[tuple[str, str | None]], tokenizer: Tokenizer, max_seq_length: int, rows_per_example: int = 1
) -> RowCollector:
    # Tokenize in two large batches; pairs without a second text have none in the second.
    ids_a = tokenizer.encode_batch([text_a for text_a, _ in pairs])
    with_b = [text_b for _, text_b in pairs if text_b is not None]
    ids_b = iter(tokenizer.encode_batch(with_b) if with_b else [])
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    collector = RowCollector()
    for index, ((_, text_b), a) in enumerate(zip(pairs, ids_a)):
        # [CLS] and [SEP] take two places around one text, and three in a pair.
        if text_b is None:
            row = [cls, *a[: max_seq_length - 2], sep]
            segment_b_start = len(row)
            num_tokens = len(a) + 2
        else:
            b = next(ids_b)
            keep_a, keep_b = truncated_pair(len(a), len(b), max_seq_length - 3)
            segment_b_start = keep_a + 2
            row = [cls, *a[:keep_a], sep, *b[:keep_b], sep]
            num_tokens = len(a) + len(b) + 3
        # Several rows may belong to one example, whose index they share.
        collector.add(row, segment_b_start, index // rows_per_example)
        if num_tokens > len(row):
            collector.note_truncated(index // rows_per_example)
    return collector


def truncated_pair(length_a: int, length_b: int, budget: int) -> tuple[int, int]:
    """Return the lengths to keep of a pair: tokens are cut off the end of the longer side, of B on a tie.

    This is the closed form of `_truncate_seq_pair` in google's run_classifier.py.
    """
    excess = max(0, length_a + length_b - budget)
    difference = length_a - length_b
    from_longer = min(excess, abs(difference))
    excess -= from_longer
    if difference > 0:
        length_a -= from_longer
    else:
        length_b -= from_longer

    # If anything is left to cut, both sides are equal: it is taken in turn, from B first.
    return length_a - excess // 2, length_b - (excess + 1) // 2


def _encode_span(
    task: Task, examples: Sequence[SpanExample], tokenizer: Tokenizer, config: FinetuningConfig
) -> EncodedSet:
    """Encode questions over windows of their contexts: `[CLS] question [SEP] window [SEP]`.

    In training, a window without the whole first answer has both positions at [CLS], as in google's run_squad.py; so
    do the windows of a question without an answer.
    """
    # Besides the question, [CLS], two [SEP] and at least one token of the context must fit.
    query_room = min(config.max_query_length, config.max_seq_length - 4)
    questions = tokenizer.encode_batch([e.question for e in examples])
    # A paragraph has several questions: tokenize it once.
    contexts = list(dict.fromkeys(e.context for e in examples))
    encoded = dict(zip(contexts, tokenizer.encode_batch_with_offsets(contexts)))
    arrays = {}
    for context, e in encoded.items():
        characters = np.asarray(e.offsets, dtype=np.int32).reshape(-1, 2)
        arrays[context] = np.asarray(e.ids, dtype=np.int32), characters, _text_ends(context, characters)

    # One row for each window of each question.
    collector = RowCollector()
    starts: list[int] = []
    ends: list[int] = []
    labeled = all(example.answers or example.is_impossible for example in examples)
    for index, (example, question) in enumerate(zip(examples, questions)):
        ids, characters, text_ends = arrays[example.context]
        head = np.asarray([tokenizer.cls_id, *question[:query_room], tokenizer.sep_id], dtype=np.int32)
        if len(question) > query_room:
            collector.note_truncated(index)
        room = config.max_seq_length - len(head) - 1
        windows = span_windows(len(ids), room, config.doc_stride)
        answer = _answer_tokens(example, characters) if labeled else None
        for (first, end), is_max in zip(windows, maximum_context(windows)):
            # Token columns: the characters that each context token covers, and whether it may start an answer here.
            row = np.concatenate([head, ids[first:end], [tokenizer.sep_id]])
            inside = slice(len(head), len(head) + end - first)
            columns = {name: np.full(len(row), -1, dtype=np.int32) for name in ("character_start", "character_end")}
            columns["character_start"][inside] = characters[first:end, 0]
            columns["character_end"][inside] = text_ends[first:end]
            columns["is_max_context"] = np.zeros(len(row), dtype=np.int32)
            columns["is_max_context"][inside] = is_max
            collector.add(row, len(head), index, **columns)
            if answer is not None and first <= answer[0] and answer[1] < end:
                starts.append(len(head) + answer[0] - first)
                ends.append(len(head) + answer[1] - first)
            else:
                # This window has no whole answer: the target is [CLS], the first token.
                starts.append(0)
                ends.append(0)
    positions: dict[str, np.ndarray] = {}
    if labeled:
        positions = {"start_positions": np.asarray(starts), "end_positions": np.asarray(ends)}
    return collector.close("span", len(examples), positions)


def _text_ends(context: str, characters: np.ndarray) -> np.ndarray:
    """Return where the text of each token ends: after combining marks that the tokenizer drops from the word's end.

    A decomposed accent is a mark of its own, which an uncased tokenizer strips, but it is part of an answer's text.
    Format characters end no text, since the official evaluation keeps them.
    """
    ends = characters[:, 1].copy()
    if context.isascii():
        return ends
    limits = np.append(characters[1:, 0], len(context))  # the next token may be a mark itself
    for index in np.flatnonzero(ends < limits):
        for position in range(int(ends[index]), int(limits[index])):
            category = unicodedata.category(context[position])
            if category == "Mn":
                ends[index] = position + 1
            elif category != "Cf":
                break
    return ends


def _answer_tokens(example: SpanExample, characters: np.ndarray) -> tuple[int, int] | None:
    """Return the indices of the first and last token that overlap the first answer.

    None without an answer, and for an answer of unknown place in the context.
    """
    if example.is_impossible or not example.answers or example.answers[0].start < 0:
        return None
    answer = example.answers[0]
    start, end = answer.start, answer.start + len(answer.text)
    overlapping = np.flatnonzero((characters[:, 0] < end) & (characters[:, 1] > start))
    return (int(overlapping[0]), int(overlapping[-1])) if len(overlapping) else None


def span_windows(num_tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return (first, end) of the windows over a context, as in google's run_squad.py.

    A stride longer than the window would skip tokens, so it is at most the window's length.
    """
    windows = []
    first = 0
    while True:
        end = min(first + room, num_tokens)
        windows.append((first, end))
        if end == num_tokens:
            return windows
        first += min(stride, end - first)


def maximum_context(windows: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Return for each window a bool array of the tokens that have their maximum context there.

    The score is that of google's `_check_is_max_context`: the smaller of the contexts left and right, plus a hundredth
    of the window's length; the first window wins ties.
    """
    if len(windows) == 1:
        first, end = windows[0]
        return [np.ones(end - first, dtype=bool)]

    # Each token's best score so far and its window: a table of all windows and tokens would grow with the square of the
    # context. Only a better score replaces the first.
    num_tokens = windows[-1][1]
    best, best_score = np.zeros(num_tokens, dtype=np.int64), np.full(num_tokens, -1.0)
    for number, (first, end) in enumerate(windows):
        position = np.arange(end - first)
        score = np.minimum(position, position[::-1]) + 0.01 * (end - first)
        is_better = score > best_score[first:end]
        best[first:end][is_better] = number
        best_score[first:end][is_better] = score[is_better]
    return [best[first:end] == number for number, (first, end) in enumerate(windows)]


def _encode_tagging(
    task: Task, examples: Sequence[TaggedExample], tokenizer: Tokenizer, config: FinetuningConfig
) -> EncodedSet:
    """Encode sentences, with `document_context` the documents they form; each word is scored in exactly one window.

    What does not fit into a row becomes several windows, of a document or of a long sentence. The first piece of a word
    carries its label (paper, section 5.3). The other pieces, and words that are only context in a window, are ignored.
    """
    index = {label: number for number, label in enumerate(task.labels)}
    labeled = all(example.tags is not None for example in examples)
    room = config.max_seq_length - 2
    max_pieces = max(1, room // 4)  # a longer word keeps its first pieces, so that no word is lost
    collector = RowCollector()
    numbers = itertools.count()
    for document in documents(examples) if config.document_context else ([example] for example in examples):
        # The words of the document: pieces, (example, word index) and label.
        pieces: list[list[int]] = []
        owners: list[tuple[int, int]] = []
        labels: list[int] = []
        for example, number in zip(document, numbers):
            ids, words = tokenizer.encode_words(example.words)
            own: list[list[int]] = [[] for _ in example.words]
            for piece, word in zip(ids, words):
                if len(own[word]) < max_pieces:
                    own[word].append(piece)
            pieces.extend(own)
            owners.extend((number, word) for word in range(len(own)))
            if labeled:
                labels.extend(_tag_labels(task, example, index))
        if not pieces:  # sentences without words
            continue

        # One row for each window; -1 and IGNORED_LABEL where nothing is scored.
        lengths = np.asarray([len(own) for own in pieces], dtype=np.int64)
        for first, end, (scored_first, scored_end) in document_windows(lengths, room):
            row = [tokenizer.cls_id]
            columns: dict[str, list[int]] = {"example": [-1], "word": [-1], "labels": [IGNORED_LABEL]}
            for word in range(first, end):
                row.extend(pieces[word])
                # Only the first piece of a scored word has an example, a word and a label.
                is_scored = scored_first <= word < scored_end
                rest = len(pieces[word]) - 1
                columns["example"] += [owners[word][0] if is_scored else -1, *[-1] * rest]
                columns["word"] += [owners[word][1] if is_scored else -1, *[-1] * rest]
                label = labels[word] if is_scored and labeled else IGNORED_LABEL
                columns["labels"] += [label, *[IGNORED_LABEL] * rest]
            row.append(tokenizer.sep_id)
            for name, values in columns.items():
                values.append(IGNORED_LABEL if name == "labels" else -1)
            if not labeled:
                del columns["labels"]
            collector.add(row, len(row), owners[scored_first][0], **columns)
    return collector.close("tagging", len(examples), {})


def _tag_labels(task: Task, example: TaggedExample, index: dict[str, int]) -> list[int]:
    tags = example.tags or ()
    if len(tags) != len(example.words):
        raise InputError(
            f"{task.name}: example {example.example_id} has {len(example.words)} words and {len(tags)} tags"
        )
    for tag in tags:
        if tag not in index:
            raise InputError(
                f"{task.name}: example {example.example_id} has the tag {tag!r}, expected {', '.join(task.labels)}"
            )
    return [index[tag] for tag in tags]


def document_windows(piece_counts: np.ndarray, room: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield (first word, end word, (first scored, end scored)) over the words of one document.

    A document that fits is one window. A longer one is cut between words into runs of about half the room; each run is
    scored in a window of its own, which is filled with as many adjacent words as fit, evenly left and right. The runs
    partition the words, so every word is scored exactly once.
    """
    num_words = len(piece_counts)
    ends = np.cumsum(piece_counts)  # pieces up to and including word w
    total = int(ends[-1])
    if total <= room:
        yield 0, num_words, (0, num_words)
        return
    starts = ends - piece_counts
    num_runs = -(-total // max(1, room // 2))
    target = total / num_runs  # runs of equal length, so that the last one is not short
    scored_first = 0
    while scored_first < num_words:
        # A run ends with the last word that fits into the target, but has at least one.
        limit = starts[scored_first] + target
        scored_end = max(scored_first + 1, int(np.searchsorted(ends, limit, side="right")))
        used = int(ends[scored_end - 1] - starts[scored_first])
        # Half of the free room goes to the left, the rest to the right, and what the right does not need to the left.
        first, end = scored_first, scored_end
        left_room = (room - used) // 2
        while first > 0 and ends[scored_first - 1] - starts[first - 1] <= left_room:
            first -= 1
        while end < num_words and ends[end] - starts[first] <= room:
            end += 1
        while first > 0 and ends[end - 1] - starts[first - 1] <= room:
            first -= 1
        yield first, end, (scored_first, scored_end)
        scored_first = scored_end


_ENCODERS: dict[str, Callable[[Task, Sequence[Any], Tokenizer, FinetuningConfig], EncodedSet]] = {
    "classification": _encode_text,
    "multilabel": _encode_text,
    "regression": _encode_text,
    "choice": _encode_choice,
    "span": _encode_span,
    "tagging": _encode_tagging,
}
