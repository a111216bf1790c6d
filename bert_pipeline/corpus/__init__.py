"""The corpus: documents in sentences, from Wikipedia dumps and other sources, in Parquet shards."""
