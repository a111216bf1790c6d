"""Wikipedias other than the English one: their own templates, labels of languages, and numbers."""
