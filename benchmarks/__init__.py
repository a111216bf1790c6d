"""Benchmarks: each program runs this project and a peer alternately and prints one table."""
