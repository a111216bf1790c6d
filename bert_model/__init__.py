"""Model layer: BERT in PyTorch, its training, fine-tuning, metrics and registry."""
