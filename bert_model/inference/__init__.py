"""Use of a finished model: predictions, features, attention."""
