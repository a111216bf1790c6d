"""Models of other programs in, and models with other vocabularies out."""
