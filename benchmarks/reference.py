"""Reference algorithm for pre-training instances in plain Python: lists of token strings, one instance at a time.

The algorithm of google-research/bert's create_pretraining_data.py with its defaults, without file formats: sentences
are gathered to a target length, half of the pairs get a random second part, pairs are truncated token by token, and
words are chosen for prediction from a shuffled list. Used as the peer of the benchmark and as the reference of a test.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

Document = Sequence[Sequence[str]]
"""Sentences of tokens."""


@dataclass
class ReferenceInstance:
    """One instance before it is written."""

    tokens: list[str]
    segment_ids: list[int]
    is_random_next: bool
    masked_positions: list[int]
    masked_labels: list[str]


@dataclass(frozen=True, kw_only=True)
class ReferenceSettings:
    """The script's flags."""

    max_seq_length: int = 128
    short_seq_prob: float = 0.1
    masked_lm_prob: float = 0.15
    max_predictions_per_seq: int = 20
    dupe_factor: int = 10


def create_instances(
    documents: Sequence[Document], vocabulary: Sequence[str], settings: ReferenceSettings, rng: random.Random
) -> list[ReferenceInstance]:
    """Return the shuffled instances of all documents, in `dupe_factor` passes."""
    reference = _Reference(documents, vocabulary, settings, rng)
    instances = []
    for _ in range(settings.dupe_factor):
        for index in range(len(documents)):
            instances += reference.instances_of(index)
    rng.shuffle(instances)
    return instances


@dataclass(frozen=True)
class _Reference:
    documents: Sequence[Document]
    vocabulary: Sequence[str]
    settings: ReferenceSettings
    rng: random.Random

    def instances_of(self, index: int) -> list[ReferenceInstance]:
        rng, document = self.rng, self.documents[index]
        room = self.settings.max_seq_length - 3  # [CLS] A [SEP] B [SEP]
        target = rng.randint(2, room) if rng.random() < self.settings.short_seq_prob else room
        instances = []
        chunk: list[Sequence[str]] = []
        gathered = 0
        position = 0
        while position < len(document):
            chunk.append(document[position])
            gathered += len(document[position])
            if position == len(document) - 1 or gathered >= target:
                first_part = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a = [token for sentence in chunk[:first_part] for token in sentence]
                is_random = len(chunk) == 1 or rng.random() < 0.5
                if is_random:
                    b = self._random_part(index, target - len(a))
                    position -= len(chunk) - first_part  # put unused sentences back
                else:
                    b = [token for sentence in chunk[first_part:] for token in sentence]
                self._cut(a, b, room)
                instances.append(self._masked(a, b, is_random))
                chunk, gathered = [], 0
            position += 1
        return instances

    def _random_part(self, index: int, target: int) -> list[str]:
        """Return the tokens of sentences from a random place in another document."""
        other = self.rng.randrange(len(self.documents) - 1)
        document = self.documents[other + (other >= index)]
        part: list[str] = []
        for sentence in document[self.rng.randrange(len(document)) :]:
            part.extend(sentence)
            if len(part) >= target:
                break
        return part

    def _cut(self, a: list[str], b: list[str], room: int) -> None:
        while len(a) + len(b) > room:
            longer = a if len(a) > len(b) else b
            if self.rng.random() < 0.5:
                del longer[0]
            else:
                longer.pop()

    def _masked(self, a: list[str], b: list[str], is_random: bool) -> ReferenceInstance:
        settings, rng = self.settings, self.rng
        tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
        segment_ids = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        candidates = [position for position, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
        rng.shuffle(candidates)
        num_masked = min(settings.max_predictions_per_seq, max(1, round(len(tokens) * settings.masked_lm_prob)))
        chosen = sorted(candidates[:num_masked])
        labels = [tokens[position] for position in chosen]
        for position in chosen:
            if rng.random() < 0.8:
                tokens[position] = "[MASK]"
            elif rng.random() < 0.5:
                tokens[position] = self.vocabulary[rng.randrange(len(self.vocabulary))]
        return ReferenceInstance(tokens, segment_ids, is_random, chosen, labels)


def pad_features(
    instance: ReferenceInstance, token_ids: dict[str, int], settings: ReferenceSettings
) -> dict[str, list[int] | list[float]]:
    """Return the zero-padded features of ids that the script writes."""
    ids = [token_ids[token] for token in instance.tokens]
    padding = [0] * (settings.max_seq_length - len(ids))
    unused = [0] * (settings.max_predictions_per_seq - len(instance.masked_positions))
    return {
        "input_ids": ids + padding,
        "input_mask": [1] * len(ids) + padding,
        "segment_ids": instance.segment_ids + padding,
        "masked_lm_positions": instance.masked_positions + unused,
        "masked_lm_ids": [token_ids[token] for token in instance.masked_labels] + unused,
        "masked_lm_weights": [1.0] * len(instance.masked_positions) + [float(zero) for zero in unused],
        "next_sentence_labels": [int(instance.is_random_next)],
    }
