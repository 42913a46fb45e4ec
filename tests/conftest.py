"""What all tests share."""

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent

# The models here are tiny, and threads that wait for each other on a busy machine cost more time
# than all the arithmetic.
torch.set_num_threads(1)
torch.manual_seed(0)  # for what modules draw when they are imported


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Let each test draw the same numbers, whatever ran before it."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes long first, so that workers side by side end together: lessons, pipeline."""
    slow = {HERE / "lessons", HERE / "tooling"}
    items.sort(key=lambda item: (HERE in item.path.parents, slow.isdisjoint(item.path.parents)))
