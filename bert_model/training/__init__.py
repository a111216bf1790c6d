"""What pre-training and fine-tuning share: optimizers, ranks, throughput, metric logs."""
