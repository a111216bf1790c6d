"""Pre-training from instance directories to a published model: `torchrun … -m bert_model.pretraining`."""
