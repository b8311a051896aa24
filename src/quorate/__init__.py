"""Quorate: a replicated log and table store in which each topic chooses how its copies agree."""

__version__ = "0.1.0"
