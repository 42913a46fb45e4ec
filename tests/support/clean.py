"""A plugin of pytest: what tests start, kernels too, finds the environment of `make run`."""

from helpers.tooling.lesson import environment


def pytest_configure() -> None:
    environment.prepare()
