"""The entries of the gallery: functions that fail, functions that do not, and what to know.

The functions carry no docstrings: each entry says what its two are for, and shows their source.
"""
