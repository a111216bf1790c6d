"""Official metrics: one entry for every task, its trivial baseline, and scoring of prediction files."""

from bert_model.metrics.score import (
    BASELINES,
    read_predictions,
    score,
    score_files,
    trivial_baseline,
    trivial_predictions,
)

__all__ = ["BASELINES", "read_predictions", "score", "score_files", "trivial_baseline", "trivial_predictions"]
