"""Dagster's definitions: assets by stage, checks, automation, predictions, archived dumps."""
