"""Benchmarks: most programs run this project and a peer alternately; each prints one table."""
