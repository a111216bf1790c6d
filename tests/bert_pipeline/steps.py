"""Steps of an extraction, counted: what takes time, without a clock."""

import sys

from bert_pipeline.wikipedia.extract import extract
from bert_pipeline.wikipedia.site import Site


def count_steps(text: str, site: Site) -> int:
    """Count the steps of an extraction: executed lines of Python, and calls of C functions."""
    steps = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal steps
        steps += 1
        return trace

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal steps
        steps += event == "c_call"

    previous = sys.gettrace()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        extract(text, site)
    finally:
        sys.settrace(previous)
        sys.setprofile(None)
    return steps
