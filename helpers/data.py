"""The batches that the lessons use: real handwritten digits, or a random stand-in."""

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.numbers import check_count

DATASETS = ("digits", "random")


def load_batch(
    dataset: str = "digits", batch_size: int = 64, device: str | torch.device = "cpu"
) -> tuple[Tensor, Tensor]:
    """Load the first `batch_size` images and their labels.

    Args:
        dataset: `"digits"`, or `"random"` for noise with the same shapes, which needs no
            scikit-learn and holds as many samples as are asked for.
        batch_size: B, the number of samples, at least 1.
        device: Where to put them.

    Returns:
        Images `(B, 1, 28, 28)`, float32 from 0 (paper) to 1 (ink); labels `(B,)`, int64, 0 to 9.

    Raises:
        ValueError: `dataset` is unknown or too small, or `batch_size` is not a positive integer.
    """
    check(dataset, batch_size)
    if dataset == "digits":
        images, labels = load_digits()
    else:
        # A generator of its own leaves the global one, which models draw from, alone.
        stream = torch.Generator().manual_seed(0)
        images = torch.rand(batch_size, 1, 28, 28, generator=stream)
        labels = torch.randint(10, (batch_size,), generator=stream)
    return images[:batch_size].to(device), labels[:batch_size].to(device)


def load_digits(device: str | torch.device = "cpu") -> tuple[Tensor, Tensor]:
    """Load all 1,797 handwritten digits: images `(1797, 1, 28, 28)` and labels `(1797,)`.

    They are scikit-learn's, of 8 x 8 pixels with ink from 0 to 16, resized. Source: Alpaydin and
    Kaynak (1998), Optical Recognition of Handwritten Digits, UCI.
    """
    from sklearn import datasets

    digits = datasets.load_digits()
    ink = torch.tensor(digits.images / 16, dtype=torch.float32)  # (1797, 8, 8)
    images = F.interpolate(
        ink[:, None],  # (1797, 1, 8, 8)
        size=(28, 28),
        mode="bicubic",
        align_corners=False,
    )
    images = images.clamp(0, 1)  # a cubic curve overshoots
    labels = torch.tensor(digits.target, dtype=torch.int64)
    return images.to(device), labels.to(device)


def check(dataset: str, batch_size: int) -> None:
    """Raise ValueError unless `load_batch` could serve a dataset and a batch size."""
    if dataset not in DATASETS:
        raise ValueError(f"dataset must be 'digits' or 'random', got {dataset!r}")
    check_count("batch_size", batch_size)
    if dataset == "digits" and batch_size > 1797:
        got = f"there are only 1797 digits, but {batch_size} were requested"
        raise ValueError(f"{got}: choose at most 1797, or dataset 'random'")
