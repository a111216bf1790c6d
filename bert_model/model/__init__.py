"""Networks and weights: BERT, its heads, CPU kernels; no ranks, logs or tasks."""
