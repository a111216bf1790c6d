"""Fine-tuning: encoding, trials, search over a grid and seeds, evaluation, the fine-tuned model."""
