"""Benchmarks: each program measures ours beside its peer, alternating, in one run, and prints one table."""
