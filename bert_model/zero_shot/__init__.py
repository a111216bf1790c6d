"""Zero-shot evaluation: minimal pairs scored by pseudo-log-likelihood."""
