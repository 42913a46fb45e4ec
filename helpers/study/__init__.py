"""Candidates measured against each other, each in a process of its own.

Nothing is imported here: the process of JAX imports modules of this folder, and has no torch.
"""
