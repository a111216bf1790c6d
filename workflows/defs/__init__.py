"""The asset graph: a module for each stage, and one each for checks and automation."""
