"""Data layer: Wikipedia dump -> documents -> vocabulary -> instances, and task data in the official formats."""
