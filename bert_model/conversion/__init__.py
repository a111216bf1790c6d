"""Conversion from and to other formats."""
