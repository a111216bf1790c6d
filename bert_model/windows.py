"""Windows over texts longer than a row: with stride for SQuAD, at word limits and with context for tagging."""

from collections.abc import Iterator, Sequence

import numpy as np


def span_windows(num_tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return (first, end) of the windows over a context, as google's run_squad.py lays them.

    A stride longer than the window would skip tokens, so it is never more than the window holds.
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
    """For each window, mark (bool) the tokens that have their maximum context there.

    The score is google's `_check_is_max_context`: the lesser of the contexts left and right, plus a hundredth of the
    window's length; the first window wins ties.
    """
    if len(windows) == 1:
        first, end = windows[0]
        return [np.ones(end - first, dtype=bool)]
    num_tokens = windows[-1][1]
    scores = np.full((len(windows), num_tokens), -1.0)
    for row, (first, end) in zip(scores, windows):
        position = np.arange(end - first)
        row[first:end] = np.minimum(position, position[::-1]) + 0.01 * (end - first)
    best = scores.argmax(axis=0)
    return [best[first:end] == number for number, (first, end) in enumerate(windows)]


def document_windows(piece_counts: np.ndarray, room: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield (first word, end word, (first scored, end scored)) over the words of one document.

    A document that fits is one window. A longer one is cut into runs of words of about half the room, each scored in
    a window of its own that is filled with as many neighbouring words as fit, evenly left and right. Cuts fall
    between words only, and the scored runs partition the words: every word is scored exactly once.
    """
    num_words = len(piece_counts)
    ends = np.cumsum(piece_counts)  # pieces up to and including word w
    total = int(ends[-1])
    if total <= room:
        yield 0, num_words, (0, num_words)
        return
    starts = ends - piece_counts
    num_runs = -(-total // max(1, room // 2))
    target = total / num_runs  # runs of even length, so that the last one is no stub
    scored_first = 0
    while scored_first < num_words:
        limit = starts[scored_first] + target
        scored_end = max(scored_first + 1, int(np.searchsorted(ends, limit, side="right")))
        used = int(ends[scored_end - 1] - starts[scored_first])
        first, end = scored_first, scored_end
        left_room = (room - used) // 2
        while first > 0 and ends[scored_first - 1] - starts[first - 1] <= left_room:
            first -= 1
        while end < num_words and ends[end] - starts[first] <= room:
            end += 1
        while first > 0 and ends[end - 1] - starts[first - 1] <= room:  # the right side may have run out of words
            first -= 1
        yield first, end, (scored_first, scored_end)
        scored_first = scored_end
