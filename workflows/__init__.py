"""Workflow layer: Dagster assets, checks, jobs, schedules and sensors over the two packages below."""
