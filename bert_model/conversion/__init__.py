"""Conversion from and to other formats and vocabularies."""
