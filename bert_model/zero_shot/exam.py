"""Take an exam: which of two texts a pre-trained model finds more likely, without training, beside a trigram model.

The score of a text is its pseudo-log-likelihood, the sum of log P(token | all other tokens), each token masked by
itself in a copy of the text (Salazar et al. 2020, arXiv 1910.14659). That is the default, because the published scores
of masked language models on BLiMP were computed so. It overrates words of several pieces, whose masked piece is given
away by the others; with `whole_words` the later pieces of its word are masked with it (PLL-word-l2r of Kauf and Ivanova
2023, arXiv 2305.10588).

Two sentences are scored by the next-sentence head, as log P(the second follows the first).
"""

import collections
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from bert_model.model.bert import BertForPreTraining
from bert_model.model.cpu_kernels import limited_threads
from bert_model.model.weights import WORD_HEADS, load_model
from bert_model.zero_shot.result import ExamResult, PairScores, correct_pairs, exam_result
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.exam.ngrams import ngram_baseline_scores
from bert_pipeline.exam.pairs import Pair
from bert_pipeline.vocabulary.tokenizer import CONTINUES, Tokenizer

logger = logging.getLogger(__name__)

CPU_BATCH_TOKENS, GPU_BATCH_TOKENS = 2048, 32768
"""Tokens of a batch: a CPU's fit in its caches, a GPU's fill it."""


def take_exam(
    directory: Path, pairs: Sequence[Pair], *, ngram_baseline: Path | None = None, whole_words: bool = False
) -> ExamResult:
    """Score a model directory on pairs, beside the trigram model of the file `ngram_baseline`.

    UsageError if the model has no masked-LM head or too few embeddings, InputError if it can read none of the pairs.
    """
    model, report = load_model(BertForPreTraining, directory)
    if any(name.startswith(WORD_HEADS) for name in report.created):
        raise UsageError(f"{directory}: a {report.source_architecture} has no head for mlm; give a pre-trained model")
    tokenizer = Tokenizer.from_directory(directory)
    next_sentence = model.has_trained_next_sentence
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    scores = score_pairs(
        model.to(device),
        tokenizer,
        pairs,
        whole_words=whole_words,
        next_sentence=next_sentence,
        num_workers=torch.get_num_threads(),
    )
    if not scores.pairs:
        raise InputError(f"{directory}: none of the {len(pairs)} pairs can be scored; its head or length does not fit")

    result = exam_result(scores, ngram_baseline_correct(ngram_baseline, scores.pairs), whole_words=whole_words)
    both = zip(scores.good.tolist(), scores.bad.tolist())
    return dataclasses.replace(result, scores={pair.pair_id: texts for pair, texts in zip(scores.pairs, both)})


def ngram_baseline_correct(ngram_baseline: Path | None, pairs: Sequence[Pair]) -> np.ndarray | None:
    """Return what the trigram model of a file has right (N,); None without a file."""
    return None if ngram_baseline is None else correct_pairs(*ngram_baseline_scores(ngram_baseline, pairs))


def score_pairs(
    model: BertForPreTraining,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    *,
    whole_words: bool = False,
    next_sentence: bool = True,
    num_workers: int | None = None,
) -> PairScores:
    """Score pairs with a loaded model, on the model's device.

    Left out, with a warning: pairs with a text longer than the model reads, or without any token. Pairs of two
    sentences are left out silently if not `next_sentence`: the head of a model trained without that objective answers
    at random. Dropout is off, and the model's mode is restored.

    On a CPU `num_workers` batches are computed at a time, each by one thread: the scores are the same bits for any
    number. None computes one batch at a time, on all of torch's threads.
    """
    kept = [pair for pair in pairs if next_sentence or len(pair.good) == 1]
    # Each different text is tokenized and scored once.
    texts = list(dict.fromkeys(text for pair in kept for text in (pair.good, pair.bad)))
    encode_batch = tokenizer.encode_batch_with_words if whole_words else tokenizer.encode_batch
    encoded = iter(encode_batch([part for text in texts for part in text]))
    ids_of = {text: tuple(next(encoded) for _ in text) for text in texts}
    limit = model.config.max_position_embeddings
    fitting = {text for text, ids in ids_of.items() if all(ids) and sum(map(len, ids)) + len(ids) + 1 <= limit}
    scored = tuple(pair for pair in kept if pair.good in fitting and pair.bad in fitting)
    if len(scored) < len(kept):
        logger.warning(
            f"{len(kept) - len(scored)} of {len(kept)} pairs are left out: a text has more than the model's {limit} "
            "tokens, or none"
        )

    scorer = _Scorer(model, tokenizer, whole_words, num_workers)
    was_training = model.training
    model.eval()
    try:
        scores = scorer.scores({text: ids_of[text] for pair in scored for text in (pair.good, pair.bad)})
    finally:
        model.train(was_training)
    return PairScores(
        scored, np.array([scores[pair.good] for pair in scored]), np.array([scores[pair.bad] for pair in scored])
    )


def token_scores(model: BertForPreTraining, tokenizer: Tokenizer, ids: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Return the log-probability, in nats, of each token of some encoded texts, masked by itself: (S,) each.

    The model is in evaluation mode, and reads all of them: a text has a token at least.
    """
    scorer = _Scorer(model, tokenizer, False, torch.get_num_threads())
    parts = scorer.parts({(str(number),): (list(row),) for number, row in enumerate(ids)})
    return [parts[str(number),] for number in range(len(ids))]


Text = tuple[str, ...]
Ids = tuple[list[int], ...]


class _Scorer:
    def __init__(
        self, model: BertForPreTraining, tokenizer: Tokenizer, whole_words: bool, num_workers: int | None
    ) -> None:
        self.model, self.tokenizer, self.whole_words = model, tokenizer, whole_words
        self.device = next(model.parameters()).device
        is_cpu = self.device.type == "cpu"
        self.batch_tokens = CPU_BATCH_TOKENS if is_cpu else GPU_BATCH_TOKENS
        self.num_workers = num_workers if is_cpu else None

    def scores(self, texts: dict[Text, Ids]) -> dict[Text, float]:
        """Return the score of each text, the sum of its parts in their order."""
        return {text: float(np.cumsum(parts)[-1]) for text, parts in self.parts(texts).items()}

    def parts(self, texts: dict[Text, Ids]) -> dict[Text, np.ndarray]:
        """Return the log-probability of each token of a text, (S,), or of the order of two sentences, (1,)."""
        # Texts of one length make batches without padding.
        by_length: dict[tuple[int, int], list[Text]] = collections.defaultdict(list)
        for text, ids in texts.items():
            by_length[len(text), sum(map(len, ids))].append(text)

        # The longest first: what a worker does alone at the end is short.
        batches: list[tuple[tuple[int, int], Callable[[], np.ndarray]]] = []
        for (num_parts, length), group in sorted(by_length.items(), reverse=True):
            cls_id, sep_id = self.tokenizer.cls_id, self.tokenizer.sep_id
            table = np.array([[cls_id, *(id for part in texts[text] for id in [*part, sep_id])] for text in group])
            # One row for each token to be masked, or for each two sentences.
            num_rows = len(group) * (length if num_parts == 1 else 1)
            first_lengths = np.array([len(texts[text][0]) + 2 for text in group])
            size = max(1, self.batch_tokens // table.shape[1])
            for start in range(0, num_rows, size):
                rows = np.arange(start, min(start + size, num_rows))
                if num_parts == 1:
                    text_of_row, position = np.divmod(rows, length)
                    batch = functools.partial(self._masked_tokens, table, text_of_row, position + 1)
                else:
                    batch = functools.partial(self._next_sentences, table[rows] % CONTINUES, first_lengths[rows])
                batches.append(((num_parts, length), batch))
        found: dict[tuple[int, int], list[np.ndarray]] = collections.defaultdict(list)
        for (key, _), computed in zip(batches, self._computed([batch for _, batch in batches])):
            found[key].append(computed)
        return {
            text: parts
            for key, group in by_length.items()
            for text, parts in zip(group, np.concatenate(found[key]).reshape(len(group), -1))
        }

    def _computed(self, batches: Sequence[Callable[[], np.ndarray]]) -> Iterator[np.ndarray]:
        """Yield the scores of the rows of each batch."""
        # Both are properties of a thread.
        kind = self.device.type
        cast = functools.partial(
            torch.autocast, kind, dtype=torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind)
        )

        def compute(batch: Callable[[], np.ndarray]) -> np.ndarray:
            with torch.inference_mode(), cast():
                return batch()

        if self.num_workers is None:
            yield from map(compute, batches)
            return
        # The number of torch's threads is a property of each thread too, and of those that follow.
        with (
            limited_threads(1),
            ThreadPoolExecutor(self.num_workers, initializer=torch.set_num_threads, initargs=(1,)) as executor,
        ):
            yield from executor.map(compute, batches)

    def _masked_tokens(self, texts: np.ndarray, text_of_row: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Return the log-probability of the token at a position of the text of each row; `texts` is (N, S)."""
        ids = texts[text_of_row]  # (B, S)
        target = ids[np.arange(len(ids)), position] % CONTINUES
        masked = self._tensor(self._masked(ids, position))
        # By the model's own forward pass: a sharded model gathers its parts for no other.
        logits = self.model(masked, masked_lm_positions=self._tensor(position[:, None])).prediction_logits[:, 0]
        loss = functional.cross_entropy(logits.float(), self._tensor(target), reduction="none")
        return -loss.double().cpu().numpy()

    def _masked(self, ids: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Mask a position of each row of ids (B, S), and with `whole_words` the pieces of its word after it."""
        columns = np.arange(ids.shape[1])
        masked = columns == position[:, None]
        if self.whole_words:
            # A later piece belongs to the word if no token between starts another word.
            starts = (ids < CONTINUES) & (columns > position[:, None])
            masked |= (columns > position[:, None]) & (np.cumsum(starts, axis=1) == 0)
        return np.where(masked, self.tokenizer.mask_id, ids % CONTINUES)

    def _next_sentences(self, ids: np.ndarray, first_lengths: np.ndarray) -> np.ndarray:
        """Return the log-probability that the second sentence of each row of ids (B, S) follows the first."""
        types = (np.arange(ids.shape[1]) >= first_lengths[:, None]).astype(np.int64)
        nothing = torch.zeros(len(ids), 0, dtype=torch.long, device=self.device)  # skips the vocabulary
        output = self.model(self._tensor(ids), None, self._tensor(types), masked_lm_positions=nothing)
        return functional.log_softmax(output.seq_relationship_logits.float(), -1)[:, 0].cpu().numpy()

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
