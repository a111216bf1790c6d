"""Tasks: official file formats in, submissions out."""
