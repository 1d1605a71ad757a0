"""Finds the position in another cluster at which a group resumes at the same record."""
