"""`diagnose`: which entries of lesson 6 apply to a model of your own."""

from helpers.limits.diagnosis.findings import Diagnosis, Finding, diagnose

__all__ = ["Diagnosis", "Finding", "diagnose"]
