"""Workflow floor: the Dagster assets, checks, jobs, schedules and sensors over the two floors below."""
