"""Pre-training instances: sentence pairs, masks, and their Parquet and TFRecord files."""
