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
from torch.utils.data import TensorDataset

from helpers.data import load_digits
from helpers.features import Job, __main__, job, open_features, shards, work
from helpers.gradient_computers import FunctionalGradientComputer
from helpers.model_outputs import ImageClassificationModelOutput
from helpers.models import MLP
from helpers.projection import project_batches
from tests.support.ways import LossOf
from tests.support.zoo import Apply, squared

ROOT = Path(__file__).parents[1]
ROWS = [(row,) for row in torch.eye(3)]
SMALL = ["--job", f"{__name__}:few", "--k", "16", "--shard", "20", "--batch", "8"]


def digits(count: int = 1000) -> Job:
    torch.manual_seed(0)
    task = ImageClassificationModelOutput()
    computer = FunctionalGradientComputer(MLP(), task, 15_910, torch.float32, "cpu")
    images, labels = load_digits()
    return Job(computer, TensorDataset(images[:count], labels[:count]))


def few() -> Job:
    return digits(77)


def run(folder: Path, *arguments: str) -> None:
    """Run the command in this process."""
    threads = torch.get_num_threads()
    try:
        __main__.main(["--out", str(folder), *(arguments or SMALL)])
    finally:
        torch.set_num_threads(threads)


def contents(folder: Path) -> dict[str, bytes]:
    found = {}
    for file in sorted(folder.iterdir()):
        found[file.name] = file.read_bytes()
    return found


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
    for number in range(4):
        assert (made / f"features-{number:06d}.npy").exists()
    assert len(contents(made)) == 5, "the four and their plan"


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


def small_job(dataset=ROWS, scale=1.0, shift=0.0, bias=0.0, task=None) -> Job:
    torch.manual_seed(0)
    model = Apply(lambda m, x: m.fc(x) * m.scale + m.shift, scale=scale)
    model.fc = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.fc.bias, bias)
    model.register_buffer("shift", torch.tensor(shift), persistent=False)
    settings = LossOf(squared)
    settings.factor = task
    computer = FunctionalGradientComputer(model, settings, 8, torch.float32, "cpu")
    return Job(computer, dataset)


def test_a_plan_depends_on_all_that_features_are_computed_of(monkeypatch):
    """Else the features of two models would lie in one folder."""

    def plan(**changes: object) -> job.Plan:
        return job.make_plan(small_job(**changes), k=4)

    first = plan()
    assert plan() == first
    for other in (plan(scale=2.0), plan(shift=1.0), plan(bias=1e-3), plan(task=2.0)):
        assert other["weights"] != first["weights"]
    assert plan(dataset=[(2 * row,) for (row,) in ROWS])["data"] != first["data"]
    # The same weights, and another forward.
    source = inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda of: source(of).replace("return", "return 2 *"))
    assert plan()["weights"] != first["weights"]


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
    folder = tmp_path / "none"
    with pytest.raises(SystemExit, match="batch"):
        run(folder, *SMALL, "--batch", "1")
    monkeypatch.setattr(job, "load", lambda name: loose)
    with pytest.raises(SystemExit, match="Tensor"):
        run(folder)
    assert not folder.exists()


def test_a_run_that_fails_leaves_complete_files_only(tmp_path, monkeypatch):
    options = ["--job", "a:b", "--k", "4", "--shard", "2"]
    rows = []
    for value in (1.0, 2.0, 3.0, 4.0, math.nan, math.inf):
        rows.append((torch.full((3,), value), torch.zeros(2)))
    monkeypatch.setattr(job, "load", lambda name: small_job(rows))
    with pytest.raises(SystemExit, match="the features of sample 4 are not finite"):
        run(tmp_path, *options)
    before = contents(tmp_path)
    assert list(before) == ["features-000000.npy", "features-000001.npy", "plan.json"]
    monkeypatch.setattr(job, "load", lambda name: small_job(rows[:4]))
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError("No space left on device")))
    with pytest.raises(SystemExit, match="No space"):
        run(tmp_path / "full", *options)
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
    options = "--kind factored --job tests.test_features:digits --k 64 --shard 50"
    command = [sys.executable, *launch, "-m", "helpers.features", "--out", str(folder)]
    command += options.split()
    return Popen(command, cwd=ROOT, stdout=PIPE, stderr=STDOUT, encoding="utf-8")


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
    pids = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text("utf-8").split()
    os.kill(int(pids[0]), signal.SIGKILL)
    finished(run)
    finished(start(tmp_path / "alone"))
    assert contents(folder) == contents(tmp_path / "alone")
