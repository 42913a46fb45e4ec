"""Global settings of torch, changed during a call.

The first call that needs a setting changes it and the last one to end restores it, so calls in
several threads may overlap in any order.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from helpers import devices


class Shared:
    """A context shared by threads: the first to enter opens it, the last to leave closes it."""

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._users = 0

    def __enter__(self) -> None:
        with self._lock:
            # Whoever comes later finds the setting changed, and must not note it as the original.
            if not self._users:
                self._open = self._make()
                self._open.__enter__()
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            # The call that came first may end before others, which still need the setting.
            if not self._users:
                self._open.__exit__(None, None, None)


@contextmanager
def _native_kernels() -> Iterator[None]:
    onednn, cudnn = torch.backends.mkldnn, torch.backends.cudnn
    was_onednn, was_cudnn = onednn.enabled, cudnn.enabled
    onednn.enabled = False
    cudnn.enabled = False
    yield
    # An error within the block does not get here: `Shared` closes this as if there was none.
    onednn.enabled = was_onednn
    cudnn.enabled = was_cudnn


@contextmanager
def _full_float32() -> Iterator[None]:
    put_back = devices.use_full_float32()
    yield
    put_back()


def _plain_attention() -> AbstractContextManager[object]:
    return sdpa_kernel(SDPBackend.MATH)


full_float32 = Shared(_full_float32)
"""Products and convolutions of float32 keep all their digits."""
plain_attention = Shared(_plain_attention)
"""Attention by matrix products: `vmap` cannot batch the fused kernels of GPUs."""
native_kernels = Shared(_native_kernels)
"""Torch's own kernels in place of those of oneDNN and cuDNN, which `vmap` cannot batch."""
uncompiled = Shared(lambda: torch.compiler.set_stance("force_eager"))
"""Compiled modules run uncompiled."""
