"""Features as a job: its files, its plan, its counter; what happens when processes die."""

import inspect
import math
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from helpers.data import load_digits
from helpers.features import Job, __main__, job, open_features, shards, work
from helpers.gradient_computers import FunctionalGradientComputer
from helpers.model_outputs import ImageClassificationModelOutput
from helpers.models import MLP
from helpers.projection import project_batches
from tests.support.ways import LossOf
from tests.support.zoo import Apply, squared

ROOT = Path(__file__).parents[1]
SMALL = ["--job", f"{__name__}:few", "--k", "16", "--shard", "20", "--batch", "8"]


def digits(count: int = 1000) -> Job:
    torch.manual_seed(0)
    given = MLP(), ImageClassificationModelOutput(), 15_910, torch.float32, "cpu"
    samples = (tensor[:count] for tensor in load_digits())
    return Job(FunctionalGradientComputer(*given), torch.utils.data.TensorDataset(*samples))


def few() -> Job:
    return digits(77)


def run(folder: Path, *arguments: str) -> None:
    """Run the command in this process."""
    threads = torch.get_num_threads()
    try:
        __main__.main(["--out", str(folder), "--device", "cpu", *(arguments or SMALL)])
    finally:
        torch.set_num_threads(threads)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Return a folder of 77 rows in shards of 20."""
    folder = tmp_path_factory.mktemp("features") / "made"
    run(folder)
    return folder


def test_rows_are_the_projected_gradients_of_the_samples(made):
    opened = open_features(made)
    expected = project_batches(few().computer, [few().dataset[:]], 16, kind="sparse")
    torch.testing.assert_close(torch.from_numpy(np.concatenate(opened)), expected)
    assert all(isinstance(shard, np.memmap) for shard in opened), "nothing is read before"
    assert sorted(contents(made)) == [*(f"features-{i:06d}.npy" for i in range(4)), "plan.json"]


def test_a_folder_is_resumed_and_another_plan_refused(made, tmp_path, capsys):
    shutil.copytree(made, tmp_path / "copy")
    made, folder = contents(made), tmp_path / "copy"
    (folder / "features-000002.npy").unlink()
    (folder / ".features-000002.npy.draft").write_bytes(b"half")
    kept = (folder / "features-000001.npy").stat().st_mtime_ns
    run(folder)
    assert "20 of them new" in capsys.readouterr().out
    assert (folder / "features-000001.npy").stat().st_mtime_ns == kept
    with pytest.raises(SystemExit, match="k is 16 there and 8 here"):
        run(folder, *SMALL, "--k", "8")
    assert contents(folder) == made


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

    def made_of(*dataset: object, **changes: object) -> job.Plan:
        return job.make_plan(small_job(*dataset, **changes), k=4)

    first = made_of()
    assert made_of() == first
    changes = {"scale": 2.0, "shift": 1.0, "bias": 1e-3, "task": 2.0}
    for option, value in changes.items():
        assert made_of(**{option: value})["weights"] != first["weights"], option
    assert made_of([(row,) for row in 2 * torch.eye(3)])["data"] != first["data"]
    source = inspect.getsource  # the forward of the same weights
    monkeypatch.setattr(inspect, "getsource", lambda of: source(of).replace("return", "return 2 *"))
    assert made_of()["weights"] != first["weights"]


def test_what_is_missing_or_damaged_is_refused(made, tmp_path):
    first, second, *_ = sorted(shutil.copytree(made, tmp_path, dirs_exist_ok=True).glob("*.npy"))
    content = first.read_bytes()
    flipped = content[:200] + bytes([content[200] ^ 1]) + content[201:]
    for damage in (b"", flipped, second.read_bytes()):
        first.write_bytes(damage)
        with pytest.raises(SystemExit, match="damaged"):
            run(tmp_path)
    np.save(first, np.zeros((3, 16)))
    with pytest.raises(ValueError, match="damaged"):
        open_features(tmp_path)
    first.unlink()
    with pytest.raises(FileNotFoundError, match=first.name):
        open_features(tmp_path)
    (tmp_path / "plan.json").unlink()
    with pytest.raises(SystemExit, match="without"):
        run(tmp_path)


def test_bad_arguments_and_samples_are_refused(tmp_path, monkeypatch):
    loose = small_job([torch.ones(3)] * 3)  # else its numbers would be parts
    for word, arguments in {"batch": [*SMALL, "--batch", "1"], "Tensor": SMALL}.items():
        with pytest.raises(SystemExit, match=word):
            run(tmp_path / "none", *arguments)
        assert not (tmp_path / "none").exists()
        monkeypatch.setattr(job, "load", lambda name: loose)


def test_a_run_that_fails_leaves_complete_files_only(tmp_path, monkeypatch):
    values = (1.0, 2.0, 3.0, 4.0, math.nan, math.inf)
    rows = [(torch.full((3,), value), torch.zeros(2)) for value in values]
    monkeypatch.setattr(job, "load", lambda name: small_job(rows))
    with pytest.raises(SystemExit, match="the features of sample 4 are not finite"):
        run(tmp_path, "--job", "a:b", "--k", "4", "--shard", "2")
    before = contents(tmp_path)
    assert [*before] == ["features-000000.npy", "features-000001.npy", "plan.json"]
    monkeypatch.setattr(job, "load", lambda name: small_job(rows[:4]))
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError("No space left on device")))
    with pytest.raises(SystemExit, match="No space"):
        run(tmp_path / "full", "--job", "a:b", "--k", "4", "--shard", "2")
    assert contents(tmp_path / "full") == {}


@pytest.mark.parametrize("is_over", [False, True])
def test_two_runs_at_once_do_not_write_into_one_draft(is_over, tmp_path, monkeypatch):
    """Neither while both write one shard, nor if one of them is over before the other."""
    file, sync = tmp_path / "features-000000.npy", os.fsync
    rows = np.ones((3, 16), dtype=np.float32)

    def other_run_meanwhile(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        shards.write_rows(file, rows)
        if is_over:
            shards.remove_drafts(tmp_path)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", other_run_meanwhile)
    shards.write_rows(file, rows)
    assert list(tmp_path.iterdir()) == [file]
    found = shards.read(file, slice(0, 3), {"k": 16})
    assert np.array_equal(found, rows)


def test_a_file_system_without_hard_links_will_do(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError("Operation not supported")))
    shards.write(tmp_path / "features-000000.npy", b"rows")
    assert contents(tmp_path) == {"features-000000.npy": b"rows"}


def test_of_two_plans_at_once_the_first_one_stays(tmp_path, monkeypatch):
    """Else both runs would write into one folder, each for a plan that it has seen there."""
    sync = os.fsync
    first, second = job.make_plan(small_job(), k=4), job.make_plan(small_job(), k=8)

    def other_run_meanwhile(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        work._settle(tmp_path, first)
        job.check_plan(tmp_path, first)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", other_run_meanwhile)
    work._settle(tmp_path, second)
    with pytest.raises(ValueError, match="k is 4 there and 8 here"):
        job.check_plan(tmp_path, second)
    assert list(contents(tmp_path)) == ["plan.json"]


def start(folder: Path, *launch: str) -> Popen:
    """Start a job of 1,000 rows, which takes a few seconds."""
    options = "--device cpu --kind factored --job tests.test_features:digits --k 64 --shard 50"
    command = [sys.executable, *launch, "-m", "helpers.features", "--out", str(folder)]
    return Popen([*command, *options.split()], cwd=ROOT, stdout=PIPE, stderr=STDOUT, text=True)


def finished(run: Popen) -> None:
    said, _ = run.communicate(timeout=200)
    assert run.returncode == 0, said


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
    finished(run)
    finished(start(tmp_path / "alone"))
    assert contents(folder) == contents(tmp_path / "alone")
