"""Prefect flows: one a file, each reads like the diagram of the road it schedules."""
