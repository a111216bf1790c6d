"""Cutting one file into train and dev so that no article, document or sentence stands on both sides."""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

from bert_pipeline.errors import UsageError
from bert_pipeline.tasks.example import ChoiceExample, SpanExample, TaggedExample, TextExample

AnyExample = TypeVar("AnyExample", TextExample, SpanExample, ChoiceExample, TaggedExample)


def group_keys(example: TextExample | SpanExample | ChoiceExample | TaggedExample) -> tuple[str, ...]:
    """Name everything that must not be shared between train and dev.

    Texts: each of the two. Spans: the article's title, or the context where there is none. Choices: the source and
    the context. Tags: the document.
    """
    if isinstance(example, TextExample):
        texts = (example.text_a,) if example.text_b is None else (example.text_a, example.text_b)
        return tuple(" ".join(text.casefold().split()) for text in texts)
    if isinstance(example, SpanExample):
        return (example.title or example.context,)
    if isinstance(example, ChoiceExample):
        return (f"source {example.source}", f"context {example.context}") if example.source else (example.context,)
    return (str(example.document),)


def split_by_group(
    examples: Sequence[AnyExample], dev_fraction: float, where: str
) -> tuple[list[AnyExample], list[AnyExample]]:
    """Cut `examples` into (train, dev), both in the file's order.

    Examples that share a key (directly or through others) form a group. The groups, in the order of their blake2b
    hash, go to dev until it holds `dev_fraction` of the examples; at least one group stays on each side, and a group
    that would more than double the dev set stays in train. UsageError when there is one group only.
    """
    parents: dict[str, str] = {}

    def root(key: str) -> str:
        while parents.setdefault(key, key) != key:
            parents[key] = parents[parents[key]]
            key = parents[key]
        return key

    for example in examples:
        first, *others = map(root, group_keys(example))
        for other in others:
            low, high = sorted((first, root(other)))
            parents[high] = first = low
    groups: dict[str, int] = {}
    for example in examples:
        group = root(group_keys(example)[0])
        groups[group] = groups.get(group, 0) + 1
    if len(groups) < 2:
        raise UsageError(
            f"{where}: holds {len(groups)} group(s) of examples, so dev_fraction cannot split it; "
            "give a file with several articles, documents or sentences"
        )
    wanted = dev_fraction * len(examples)
    dev_groups: set[str] = set()
    dev_size = 0
    for group in sorted(groups, key=_group_order):
        if dev_size >= wanted or len(dev_groups) == len(groups) - 1:
            break
        if dev_size + groups[group] <= max(2 * wanted, 1):
            dev_groups.add(group)
            dev_size += groups[group]
    if not dev_groups:
        dev_groups = {min(groups, key=lambda group: (groups[group], _group_order(group)))}
    sides: tuple[list[AnyExample], list[AnyExample]] = ([], [])
    for example in examples:
        sides[root(group_keys(example)[0]) in dev_groups].append(example)
    return sides


def _group_order(group: str) -> bytes:
    return hashlib.blake2b(group.encode("utf-8", "surrogatepass"), digest_size=8).digest()
