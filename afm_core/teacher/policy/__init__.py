"""A policy as teacher: rejection sampling from our own model, through the same road as the team."""
