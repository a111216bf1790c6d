"""The contract between data and training: documents and instances in Parquet, instances in google's TFRecord."""
