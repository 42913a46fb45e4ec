"""The job of features: its files, its plan, its counters; what happens when processes die."""

import inspect
import math
import os
import signal
import sys
import time
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen

import numpy as np
import pytest
import torch

from helpers.features import Job, __main__, jobs, open_features, plan, work
from helpers.gradient_computers import FunctionalGradientComputer
from helpers.projection import project_batches
from tests.support.ways import LossOf
from tests.support.zoo import Apply, squared

ROOT = Path(__file__).parents[1]
SMALL = ["--model", "mlp", "--samples", "77", "--k", "16", "--shard", "20", "--batch", "8"]


def run(folder: Path, *arguments: str) -> None:
    """Run the command in this process."""
    threads = torch.get_num_threads()
    try:
        __main__.main(["--out", str(folder), "--device", "cpu", *(arguments or SMALL)])
    finally:
        torch.set_num_threads(threads)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Be no process of torchrun's."""
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Return a folder of 77 rows in shards of 20."""
    folder = tmp_path_factory.mktemp("features") / "made"
    run(folder)
    return folder


def test_rows_are_the_projected_gradients_of_the_samples(made):
    features = open_features(made)
    job = jobs.on_digits("MLP", 77, 0, torch.device("cpu"))
    expected = project_batches(job.computer, [jobs.collate(job.dataset)], 16, kind="sparse")
    torch.testing.assert_close(torch.from_numpy(np.asarray(features)), expected)
    kernel = np.load(made / work.KERNEL)
    assert np.abs(kernel - np.asarray(features, float).T @ np.asarray(features, float)).max() < 1e-9
    shards_of_it = [f"features-{index:06d}.npy" for index in range(4)]
    assert sorted(contents(made)) == [*shards_of_it, "kernel.npy", "plan.json"]


def test_features_are_read_as_one_array(made):
    features = open_features(made)
    whole = np.concatenate([np.load(made / f"features-{i:06d}.npy") for i in range(4)])
    picks = 0, 76, -1, slice(15, 45), slice(None, None, -7), [70, 3, 3, -77], [], np.arange(5)
    for rows in picks:
        assert np.array_equal(features[rows], whole[rows])
    assert len(features) == 77
    assert all(isinstance(shard, np.memmap) for shard in features.shards), "nothing is read before"


def test_the_same_command_does_what_is_missing_and_nothing_else(
    made, tmp_path, capsys, monkeypatch
):
    run(tmp_path)
    assert contents(tmp_path) == contents(made)
    (tmp_path / "features-000002.npy").unlink()
    kept = (tmp_path / "features-000001.npy").stat().st_mtime_ns
    run(tmp_path)
    assert contents(tmp_path) == contents(made)
    assert (tmp_path / "features-000001.npy").stat().st_mtime_ns == kept
    assert "20 of them computed now" in capsys.readouterr().out
    monkeypatch.setattr(Path, "replace", None)  # a finished folder may be read-only
    run(tmp_path)


def test_another_plan_is_refused_by_naming_what_differs(made, capsys):
    before = contents(made)
    with pytest.raises(SystemExit, match="k is 16 there and 8 here"):
        run(made, *SMALL, "--k", "8")
    assert contents(made) == before


def small_job(dataset=None, scale=1.0, shift=0.0, bias=0.0, task=None) -> Job:
    torch.manual_seed(0)
    model = Apply(lambda m, x: m.fc(x) * m.scale + m.shift, scale=scale)
    model.fc = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.fc.bias, bias)
    model.register_buffer("shift", torch.tensor(shift), persistent=False)
    settings = LossOf(squared)
    settings.factor = task
    computer = FunctionalGradientComputer(model, settings, 8, torch.float32, "cpu")
    return Job(computer, [(row,) for row in torch.eye(3)] if dataset is None else dataset)


def test_a_plan_depends_on_all_that_features_are_computed_of(monkeypatch):
    """Else the features of two models would lie in one folder."""

    def made_of(*dataset: object, **changes: object) -> plan.Plan:
        sizes = {"k": 4, "kind": "sparse", "seed": 0, "shard": 8, "batch": 4, "threads": 1}
        return plan.make(small_job(*dataset, **changes), device="cpu", **sizes)

    first = made_of()
    assert made_of() == first
    changes = {"scale": 2.0, "shift": 1.0, "bias": 1e-3, "task": 2.0}
    for option, value in changes.items():
        assert made_of(**{option: value}).weights != first.weights, option
    assert made_of([(row,) for row in 2 * torch.eye(3)]).data != first.data
    source = inspect.getsource  # the forward of the same weights
    monkeypatch.setattr(inspect, "getsource", lambda of: source(of).replace("return", "return 2 *"))
    assert made_of().weights != first.weights


def test_what_is_missing_or_wrong_in_a_folder_is_said(made, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"plan.json"):
        open_features(tmp_path)
    before, last = contents(made), tmp_path / "features-000003.npy"
    for name in before.keys() - {last.name}:
        (tmp_path / name).write_bytes(before[name])
    with pytest.raises(FileNotFoundError, match="missing"):
        open_features(tmp_path)
    np.save(last, np.zeros((3, 16)))
    with pytest.raises(ValueError, match="damaged"):
        open_features(tmp_path)
    last.write_bytes(before[last.name])
    content, first = before["features-000000.npy"], tmp_path / "features-000000.npy"
    flipped = content[:200] + bytes([content[200] ^ 1]) + content[201:]
    for damage in (b"", flipped, before["features-000001.npy"]):
        first.write_bytes(damage)
        with pytest.raises(SystemExit, match="damaged"):
            run(tmp_path)


REFUSED = {  # by a word of what is said, the arguments, and the samples of the job
    "batch": ([*SMALL, "--batch", "1"], None),
    "--samples": (["--model", "mlp"], None),
    "'vgg'": (["--model", "vgg", "--samples", "3"], None),
    "Tensor": (["--job", "a:b"], [torch.ones(3)] * 3),  # else its numbers would be parts
}


@pytest.mark.parametrize("word", REFUSED)
def test_bad_arguments_and_samples_are_refused(word, tmp_path, capsys, monkeypatch):
    arguments, dataset = REFUSED[word]
    if dataset is not None:
        monkeypatch.setattr(jobs, "load", lambda name: small_job(dataset))
    with pytest.raises(SystemExit) as error:
        run(tmp_path / "none", *arguments)
    assert word in capsys.readouterr().err + str(error.value)
    assert not (tmp_path / "none").exists()


def test_what_is_not_finite_is_not_written(tmp_path, monkeypatch):
    values = (1.0, 2.0, 3.0, 4.0, math.nan, math.inf)
    rows = [(torch.full((3,), value), torch.zeros(2)) for value in values]
    monkeypatch.setattr(jobs, "load", lambda name: small_job(rows))
    with pytest.raises(SystemExit, match="the features of sample 4 are not finite"):
        run(tmp_path, "--job", "a:b", "--k", "4", "--shard", "2")
    assert [*contents(tmp_path)] == ["features-000000.npy", "features-000001.npy", "plan.json"]


def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SystemExit, match="No space"):
        run(tmp_path)
    assert contents(tmp_path) == {}


def start(folder: Path, *launch: str) -> Popen:
    """Start a job of 1,000 rows, which takes a few seconds."""
    job = "--device cpu --kind factored --model mlp --samples 1000 --k 64 --shard 50 --batch 16"
    command = [sys.executable, *launch, "-m", "helpers.features", "--out", str(folder)]
    return Popen([*command, *job.split()], cwd=ROOT, stdout=PIPE, stderr=STDOUT, text=True)


def finished(run: Popen) -> str:
    said, _ = run.communicate(timeout=200)
    assert run.returncode == 0, said
    return said


@pytest.mark.whole
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system lists no children")
def test_two_processes_of_which_one_is_killed_give_the_bits_of_one(tmp_path):
    folder = tmp_path / "killed"
    launch = "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 3"
    run, until = start(folder, *launch.split()), time.monotonic() + 120
    while not list(folder.glob("features-*.npy")) and time.monotonic() < until:
        time.sleep(0.02)
    pids = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    os.kill(int(pids[0]), signal.SIGKILL)
    said = finished(run)
    finished(start(tmp_path / "alone"))
    assert contents(folder) == contents(tmp_path / "alone")
    assert "restarts: 1" in said
