"""Devices by name, as seen on machines that have them and on machines that do not."""

import json
import random
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

from helpers import devices, gradients, norms, privacy


@pytest.fixture
def machine(monkeypatch):
    """Pretend that the machine has so many devices of a kind, one of which is the current one."""

    def pretend(kind: str | None = None, count: int = 1, current: int = 0) -> None:
        accelerator = torch.device(kind) if kind else None
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available=False: accelerator
        )
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: current)

    return pretend


@pytest.mark.parametrize(
    ("kind", "count", "names"),
    [
        (None, 0, ["cpu"]),
        ("cuda", 2, ["cuda:0", "cuda:1", "cpu"]),
        ("mps", 1, ["mps:0", "cpu"]),
        ("xpu", 1, ["xpu:0", "cpu"]),
    ],
)
def test_the_best_device_is_listed_first(machine, kind, count, names):
    machine(kind, count)
    assert devices.available() == names
    assert devices.resolve() == torch.device(names[0])


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (" CPU ", "cpu"),
        ("cuda", "cuda:0"),
        ("Cuda:1", "cuda:1"),
        (torch.device("cuda", 1), "cuda:1"),
    ],
)
def test_resolve_finds_what_is_there(machine, asked, name):
    machine("cuda", 2)
    assert str(devices.resolve(asked)) == name


def test_a_name_without_an_index_is_the_current_device(machine):
    """Of eight processes, each with `torch.cuda.set_device(rank)`, none may land on GPU 0."""
    machine("cuda", 8, current=3)
    for asked in ("cuda", "auto", torch.device("cuda")):
        assert str(devices.resolve(asked)) == "cuda:3"
    assert str(devices.resolve("cuda:1")) == "cuda:1"


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_what_resolve_gives_it_takes(machine, kind):
    machine(kind)
    found = devices.resolve(kind)
    assert found == torch.device(kind, 0)  # as `tensor.device` is, where comparisons are made
    assert devices.resolve(found) == found


@pytest.mark.parametrize("asked", ["cuda:2", "mps", "gpu"])
def test_resolve_refuses_what_is_not_there_and_names_what_is(machine, asked):
    machine("cuda", 2)
    with pytest.raises(ValueError, match="cuda:0, cuda:1, cpu"):
        devices.resolve(asked)


def test_float64_is_computed_where_there_is_one():
    assert devices.for_float64(torch.device("cpu")) == torch.device("cpu")
    # torch refuses: on a Mac since MPS has no float64, elsewhere since there is no MPS.
    assert devices.for_float64(torch.device("mps")) == torch.device("cpu")


def draws() -> tuple[float, ...]:
    return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002


def test_make_repeatable_seeds_every_stream():
    devices.make_repeatable(0)
    first = draws()
    devices.make_repeatable(1)
    assert all(a != b for a, b in zip(first, draws(), strict=True))
    devices.make_repeatable(0)
    assert draws() == first


def test_a_seed_below_zero_is_refused():
    with pytest.raises(ValueError, match="seed"):
        devices.make_repeatable(-1)


def set_older(convolutions: bool, products: bool) -> None:
    torch.backends.cudnn.allow_tf32 = convolutions
    torch.backends.cuda.matmul.allow_tf32 = products


PRECISIONS = {
    "torch's default": lambda: None,
    "all on": lambda: set_older(True, True),
    "all off": lambda: set_older(False, False),
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "newer, everywhere": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "newer, convolutions": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
}
"""What people write to choose the precision of float32, in the older and the newer interface."""
PRECISION_OF_ALL = """
import json, torch
from helpers import devices
from tests.test_devices import PRECISIONS

def read():
    backends = torch.backends
    switches = (backends, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn,
                backends.cuda.matmul, backends.mkldnn.conv, backends.mkldnn.matmul)
    found = [switch.fp32_precision for switch in switches]
    for ask in (lambda: backends.cudnn.allow_tf32, lambda: backends.cuda.matmul.allow_tf32,
                torch.get_float32_matmul_precision):
        try:
            found.append(ask())
        except RuntimeError:  # torch refuses to say, after the newer interface was used
            found.append("refused")
    return found

PRECISIONS[{name!r}]()
before = read()
put_back = devices.use_full_float32()
inside = read()
with torch.backends.cudnn.flags(enabled=False):  # a forward pass may do this
    pass
put_back()
print(json.dumps([before, inside, read()]))
"""


@pytest.mark.parametrize("name", PRECISIONS)
def test_full_float32_holds_for_a_while_and_leaves_no_trace(name):
    # In a process of its own, since torch cannot set all switches back to how it starts.
    command = [sys.executable, "-W", "ignore", "-c", PRECISION_OF_ALL.format(name=name)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if name == "newer, convolutions":  # then `cudnn.flags` raises an error of its own
        assert "RuntimeError" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    before, inside, after = json.loads(done.stdout)
    assert inside[2:7] == ["ieee"] * 5
    assert after == before


def test_a_repeatable_run_is_in_full_float32():
    put_back = devices.use_full_float32()
    put_back()
    try:
        devices.make_repeatable()
        assert torch.backends.cudnn.conv.fp32_precision == "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert not torch.backends.cudnn.allow_tf32
    finally:
        put_back()


NOTED = []
"""What `Noting` noted. It lies outside of the model, where a call would put it back."""


class Noting(nn.Module):
    """A convolution that notes torch's precision whenever it runs."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.before_it_ends = lambda: None

    def forward(self, images):
        NOTED.append(torch.backends.cudnn.conv.fp32_precision)
        self.before_it_ends()
        NOTED.append(torch.backends.cudnn.conv.fp32_precision)
        return self.conv(images).flatten(1)


CALLS = {
    "norms": norms.gradient_norms,
    "clipped sum": lambda *case: norms.clipped_sum(*case, 1.0),
    "private sum": lambda *case: privacy.private_sum(*case, limit=1.0, noise_multiplier=1.0),
    "check": lambda *case: gradients.func_gradients(*case, check=True),
}
IMAGES = torch.rand(3, 1, 5, 5), torch.rand(3, 18)


@pytest.fixture
def tf32():
    """Switch TF32 on for convolutions; it must be off in the model, and on again afterwards."""
    convolutions = torch.backends.cudnn.conv
    before = convolutions.fp32_precision
    convolutions.fp32_precision = "tf32"
    NOTED.clear()
    yield
    after = convolutions.fp32_precision
    convolutions.fp32_precision = before
    assert set(NOTED) == {"ieee"}
    assert after == "tf32"


@pytest.mark.parametrize("name", CALLS)
def test_what_must_not_depend_on_tf32_switches_it_off_for_the_call(tf32, name):
    CALLS[name](Noting(), nn.functional.mse_loss, *IMAGES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_tf32_is_as_before_after_an_error(tf32, name):
    def fail():
        raise KeyError("of the model")

    model = Noting()
    model.before_it_ends = fail
    with pytest.raises(KeyError):
        CALLS[name](model, nn.functional.mse_loss, *IMAGES)


def test_a_call_that_ends_leaves_tf32_off_for_one_that_still_runs(tf32):
    first, second = Noting(), Noting()
    both_run, first_has_ended = threading.Barrier(2), threading.Event()
    first.before_it_ends = both_run.wait

    def wait_for_the_first():
        both_run.wait()
        first_has_ended.wait()

    second.before_it_ends = wait_for_the_first

    def run_first():
        norms.gradient_norms(first, nn.functional.mse_loss, *IMAGES)
        first_has_ended.set()

    thread = threading.Thread(target=run_first)
    thread.start()
    norms.gradient_norms(second, nn.functional.mse_loss, *IMAGES)
    thread.join()
