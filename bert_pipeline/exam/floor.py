"""Scores of pairs by an n-gram model, which is read by kenlm."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.exam.ngrams import WordSplitter
from bert_pipeline.exam.pairs import Pair

FLOOR_NAME = "floor.arpa"
"""The n-gram model in a directory of `build_exam`."""
KENLM_MISSING = "the n-gram floor needs kenlm: pip install 'bert-workflow[exam]'"


def has_kenlm() -> bool:
    """Return whether kenlm is installed."""
    return importlib.util.find_spec("kenlm") is not None


def floor_scores(arpa: Path | str, pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray]:
    """Return log10 of the probabilities of the good (N,) and of the bad texts (N,); two sentences count as one.

    UsageError if kenlm is not installed, InputError if the file is not a model.
    """
    try:
        import kenlm
    except ImportError:
        raise UsageError(KENLM_MISSING) from None
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    try:
        model = kenlm.Model(str(arpa), config)
    except OSError as error:
        raise InputError(f"{arpa}: not an n-gram model ({error})") from error
    splitter = WordSplitter()
    good, bad = (
        np.array([model.score(" ".join(splitter.split(" ".join(text)))) for text in texts], dtype=np.float64)
        for texts in ([pair.good for pair in pairs], [pair.bad for pair in pairs])
    )
    return good, bad
