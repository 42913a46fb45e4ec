"""Verdicts on answers to exercises, as a check cell of a lesson asks for them."""

from helpers.exercises.verdicts import STILL_TO_DO, check, expect, expect_shape, require

__all__ = ["STILL_TO_DO", "check", "expect", "expect_shape", "require"]
