"""Runs set side by side in one page."""
