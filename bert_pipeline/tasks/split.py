"""Splits of files without a dev set, by groups of examples."""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

from bert_pipeline.errors import UsageError
from bert_pipeline.tasks.example import ChoiceExample, SpanExample, TaggedExample, TextExample

AnyExample = TypeVar("AnyExample", TextExample, SpanExample, ChoiceExample, TaggedExample)


def split_by_group(
    examples: Sequence[AnyExample], dev_fraction: float, where: str
) -> tuple[list[AnyExample], list[AnyExample]]:
    """Split `examples` into (train, dev), both in the order of the file.

    Examples that share a key (directly or through others) form a group. Groups go to dev in the order of their blake2b
    hash until it holds `dev_fraction` of the examples; each side gets at least one group, and a group that would more
    than double the dev set stays in train. UsageError if there is one group only.
    """
    # Union-find over keys; the smallest key represents its group, whatever the order of the examples.
    parents: dict[str, str] = {}

    def root(key: str) -> str:
        while parents.setdefault(key, key) != key:
            parents[key] = parents[parents[key]]
            key = parents[key]
        return key

    # All keys of an example are joined, so that examples that share one end up in one group.
    for example in examples:
        first, *others = map(root, example.group_keys)
        for other in others:
            low, high = sorted((first, root(other)))
            parents[high] = first = low

    # Sizes of the groups, which decide what fits into dev.
    groups: dict[str, int] = {}
    for example in examples:
        group = root(example.group_keys[0])
        groups[group] = groups.get(group, 0) + 1
    if len(groups) < 2:
        raise UsageError(
            f"{where}: holds {len(groups)} group(s) of examples, so dev_fraction cannot split it; "
            "give a file with several articles, documents or sentences"
        )

    # Fill dev in the order of the groups' hashes.
    target = dev_fraction * len(examples)
    dev_groups: set[str] = set()
    dev_size = 0
    for group in sorted(groups, key=_group_order):
        if dev_size >= target or len(dev_groups) == len(groups) - 1:
            break
        if dev_size + groups[group] <= max(2 * target, 1):
            dev_groups.add(group)
            dev_size += groups[group]

    # Every group was too large: the smallest is taken, so that neither side is empty.
    if not dev_groups:
        dev_groups = {min(groups, key=lambda group: (groups[group], _group_order(group)))}
    sides: tuple[list[AnyExample], list[AnyExample]] = ([], [])
    for example in examples:
        sides[root(example.group_keys[0]) in dev_groups].append(example)
    return sides


def _group_order(group: str) -> bytes:
    return hashlib.blake2b(group.encode("utf-8", "surrogatepass"), digest_size=8).digest()
