"""The job of features: its files, its plan, its counters; what happens when processes die."""

import inspect
import json
import math
import os
import platform
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.features import Job, __main__, jobs, open_features, plan, shards, work
from helpers.features.workers import Workers
from helpers.gradient_computers import FunctionalGradientComputer
from helpers.projection import project_batches
from tests.support.ways import LossOf
from tests.support.zoo import Apply, squared

ROOT = Path(__file__).parents[1]
SMALL = ["--model", "mlp", "--samples", "77", "--k", "16", "--shard", "20", "--batch", "8"]


def run(folder: Path, *arguments: str) -> None:
    """Run the command in this process."""
    sys.argv = ["features", "--out", str(folder), "--device", "cpu", *(arguments or SMALL)]
    threads = torch.get_num_threads()
    try:
        __main__.main()
    finally:
        torch.set_num_threads(threads)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.fixture(autouse=True)
def command_line(monkeypatch):
    """Put the command line back, and be no process of torchrun's."""
    monkeypatch.setattr(sys, "argv", [])
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Return a folder of 77 rows in shards of 20."""
    folder = tmp_path_factory.mktemp("features") / "made"
    saved = sys.argv
    run(folder)
    sys.argv = saved
    return folder


@pytest.mark.parametrize(
    ("count", "size", "sizes"),
    [(10, 4, [4, 4, 2]), (9, 4, [4, 5]), (8, 4, [4, 4]), (5, 4, [5]), (3, 4, [3]), (1, 4, [1])],
)
def test_no_piece_is_a_single_row(count, size, sizes):
    pieces = shards.bounds(count, size)
    assert [piece.stop - piece.start for piece in pieces] == sizes
    assert [row for piece in pieces for row in range(piece.start, piece.stop)] == list(range(count))


def test_rows_are_the_projected_gradients_of_the_samples(made):
    features = open_features(made)
    job = jobs.on_digits("MLP", 77, 0, torch.device("cpu"))
    expected = project_batches(job.computer, [jobs.collate(job.dataset)], 16, kind="sparse")
    assert features.shape == (77, 16)
    torch.testing.assert_close(torch.from_numpy(np.asarray(features)), expected)
    kernel = np.load(made / work.KERNEL)
    assert np.abs(kernel - np.asarray(features, float).T @ np.asarray(features, float)).max() < 1e-9
    assert sorted(contents(made)) == [
        *(f"features-{index:06d}.npy" for index in range(4)),
        "kernel.npy",
        "plan.json",
    ]


def test_features_are_read_as_one_array(made):
    features = open_features(made)
    whole = np.concatenate([np.load(made / f"features-{i:06d}.npy") for i in range(4)])
    picks = 0, 76, -1, slice(15, 45), slice(None, None, -7), [70, 3, 3, -77], [], np.arange(5)
    for rows in picks:
        assert np.array_equal(features[rows], whole[rows])
    assert len(features) == 77
    assert all(isinstance(shard, np.memmap) for shard in features.shards), "nothing is read before"
    for rows in (77, 2.5, (3, 1)):  # of an array, the last is one number
        with pytest.raises(IndexError):
            features[rows]


def test_the_same_command_does_what_is_missing_and_nothing_else(made, tmp_path, capsys):
    run(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(made)
    (tmp_path / "again" / "features-000002.npy").unlink()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    half = f".features-000001.npy.draft-{platform.node()}"
    (tmp_path / "again" / f"{half}-{ended.pid}").write_text("half")
    kept = (tmp_path / "again" / "features-000001.npy").stat().st_mtime_ns
    run(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(made)
    assert (tmp_path / "again" / "features-000001.npy").stat().st_mtime_ns == kept
    assert "77 rows, 20 of them computed now, by 1 process" in capsys.readouterr().out


def test_another_plan_is_refused_by_naming_what_differs(made, capsys):
    before = contents(made)
    for arguments, said in (
        ([*SMALL[:5], "8", *SMALL[6:]], "k is 16 there and 8 here"),
        ([*SMALL, "--seed", "1"], "seed is 0 there and 1 here; weights is"),
        ([*SMALL, "--threads", "2"], "threads is 1 there and 2 here"),
        ([*SMALL[:3], "78", *SMALL[4:]], "data is"),
    ):
        with pytest.raises(SystemExit, match="holds features of another plan") as error:
            run(made, *arguments)
        assert said in str(error.value)
    assert contents(made) == before


def small_job(
    dataset=None, scale=1.0, shift=0.0, act=torch.tanh, bias=0.0, task=None, grad_wrt=("fc.weight",)
) -> Job:
    torch.manual_seed(0)
    model = Apply(lambda m, x: m.act(m.fc(x) * m.scale + m.shift), scale=scale, act=act)
    model.fc = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.fc.bias, bias)
    model.register_buffer("shift", torch.tensor(shift), persistent=False)
    settings = LossOf(squared)
    settings.factor = task
    count = 6 if grad_wrt == ("fc.weight",) else 2
    computer = FunctionalGradientComputer(model, settings, count, torch.float32, "cpu", grad_wrt)
    return Job(computer, [(row,) for row in torch.eye(3)] if dataset is None else dataset)


def made_of(job: Job) -> plan.Plan:
    sizes = {"k": 4, "kind": "sparse", "seed": 0, "shard": 8, "batch": 4}
    return plan.make(job, threads=1, device="cpu", **sizes)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("scale", 2.0), ("shift", 1.0), ("act", torch.relu), ("bias", 1e-3), ("task", 2.0)),
        ("grad_wrt", ("fc.bias",)),
    ],
)
def test_a_plan_depends_on_all_that_features_are_computed_of(option, value):
    """Else the features of two models would lie in one folder."""
    first, other = made_of(small_job()), made_of(small_job(**{option: value}))
    assert other.weights != first.weights
    assert other.data == first.data == made_of(small_job()).data
    assert made_of(small_job()) == first
    assert made_of(small_job([(row,) for row in 2 * torch.eye(3)])).data != first.data


def test_a_plan_depends_on_the_forward_of_the_same_weights(monkeypatch):
    first = made_of(small_job())
    source = inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda of: source(of).replace("return", "return 2 *"))
    assert made_of(small_job()).weights != first.weights


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ([], "dataset must hold a sample at least, got none"),
        # Else its numbers would be parts.
        ([torch.ones(3)] * 3, "such as (image, label), got Tensor"),
        ([{"x": "a"}] * 3, "such as (image, label), got dict"),
        ([(torch.ones(3), "a")] * 3, "such as (image, label), got tuple"),
    ],
)
def test_samples_that_are_none_are_refused(dataset, said, monkeypatch, tmp_path):
    monkeypatch.setattr(jobs, "load", lambda name: small_job(dataset))
    with pytest.raises(SystemExit, match=re.escape(said)):
        run(tmp_path / "out", "--job", "a:b", "--k", "4")


def test_what_is_missing_or_wrong_in_a_folder_is_said(made, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"plan.json"):
        open_features(tmp_path)
    for file in made.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "features-000003.npy").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"1 of 4 shards are missing, the first is features-0"
    ):
        open_features(tmp_path)
    np.save(tmp_path / "features-000003.npy", np.zeros((3, 16)))
    with pytest.raises(ValueError, match=r"or holds no \(17, 16\) floating point numbers"):
        open_features(tmp_path)
    (tmp_path / "plan.json").unlink()
    with pytest.raises(SystemExit, match=r"holds features without plan.json"):
        run(tmp_path)


@pytest.mark.parametrize("left", [0, 140])
def test_damaged_files_are_named(left, made, tmp_path):
    for name, content in contents(made).items():
        (tmp_path / name).write_bytes(content[:left] if name == "features-000001.npy" else content)
    with pytest.raises(ValueError, match=r"features-000001.npy is damaged, "):
        open_features(tmp_path)
    with pytest.raises(SystemExit, match=r"features-000001.npy is damaged, "):
        run(tmp_path)


@pytest.mark.parametrize("name", ["kernel.npy", "features-000001.npy"])
def test_files_of_others_are_left_alone(name, made, tmp_path):
    at_work = f"draft-{platform.node()}-{os.getppid()}"  # of a job that runs
    others = dict.fromkeys(
        [
            *("weights.npy.gz", "features-000000.npy.bak", "features-000000.npy.backup-1"),
            *("kernel.npy.2024-05-01", f".kernel.npy.{at_work}", ".kernel.npy.draft-elsewhere-1"),
        ],
        b"kept",
    )
    others[name] = b"mine"
    for file, content in others.items():
        (tmp_path / file).write_bytes(content)
    with pytest.raises(SystemExit, match=f"holds features without plan.json, such as {name}"):
        run(tmp_path)
    assert contents(tmp_path) == others
    (tmp_path / name).unlink()
    for _ in range(2):
        run(tmp_path)
        assert contents(tmp_path) == contents(made) | {k: others[k] for k in others if k != name}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*SMALL, "--batch", "1"], "must be a whole number, at least 2"),
        ([*SMALL, "--k", "0"], "must be a whole number, at least 1"),
        (["--model", "mlp"], "--samples goes with --model"),
        (["--job", "a:b", "--samples", "3"], "--samples goes with --model"),
        (["--model", "vgg", "--samples", "3"], "invalid choice: 'vgg'"),
        ([*SMALL, "--kin", "sparse"], "unrecognized arguments: --kin"),
    ],
)
def test_bad_arguments_are_refused(arguments, said, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(tmp_path / "none", *arguments)
    assert said in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


USERS = """
import torch
from helpers.features import Job
from helpers.features.jobs import on_digits

def good():
    return on_digits("MLP", 9, 5, torch.device("cpu"))
"""


def test_a_job_of_a_users_own_is_found_in_the_working_directory(tmp_path, monkeypatch, capsys):
    (tmp_path / "users_job.py").write_text(USERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    run(tmp_path / "out", "--job", "users_job:good", "--k", "4")
    assert open_features(tmp_path / "out").shape == (9, 4)
    with pytest.raises(SystemExit, match=r"job must be .*, got 'users_job'"):
        run(tmp_path / "other", "--job", "users_job", "--k", "4")


def test_what_is_not_finite_is_not_written(tmp_path, monkeypatch):
    values = (1.0, 2.0, 3.0, 4.0, math.nan, math.inf)
    rows = [(torch.full((3,), value), torch.zeros(2)) for value in values]
    monkeypatch.setattr(jobs, "load", lambda name: small_job(rows))
    with pytest.raises(SystemExit, match="the features of sample 4 are not finite"):
        run(tmp_path, "--job", "a:b", "--k", "4", "--shard", "2")
    assert [*contents(tmp_path)] == ["features-000000.npy", "features-000001.npy", "plan.json"]


def test_rows_of_a_shard_are_those_that_were_written(made, tmp_path):
    """A flipped bit, and another shard of the same shape."""
    first, second = (f"features-00000{index}.npy" for index in (0, 1))
    flipped = bytearray(contents(made)[first])
    flipped[200] ^= 1
    for content in (bytes(flipped), contents(made)[second]):
        for name, others in contents(made).items():
            (tmp_path / name).write_bytes(content if name == first else others)
        with pytest.raises(SystemExit, match=f"{first} is damaged, "):
            run(tmp_path)


def test_a_finished_folder_is_not_written_into(made, monkeypatch, capsys):
    def refuse(*args: object) -> None:
        raise OSError("Read-only file system")

    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    run(made)
    assert "77 rows, 0 of them computed now" in capsys.readouterr().out


def test_a_full_disk_leaves_whole_shards_alone(made, tmp_path):
    """A limit on the size of a file stands in for it: the system refuses the rest of a write."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
        "from helpers.features import __main__; __main__.main()"
    )
    arguments = ["--out", str(tmp_path), "--device", "cpu", *SMALL]
    tried = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert tried.returncode == 1
    assert "features: [Errno 27] File too large" in tried.stderr
    assert list(contents(tmp_path)) == ["plan.json"]
    run(tmp_path)
    assert contents(tmp_path) == contents(made)


def test_the_kernel_is_a_sum_of_integers_in_any_order(made, monkeypatch):
    """What two processes would add are the integers that one adds alone."""
    sums: list[torch.Tensor] = []
    monkeypatch.setattr(shards, "write_whole", lambda file, content: None)
    workers = Workers()
    monkeypatch.setattr(workers, "sum", lambda numbers: sums.append(numbers.clone()))
    monkeypatch.setattr(workers, "largest", lambda number: 1000.0)
    for own in ([0, 1, 2, 3], [0, 3], [1, 2]):
        monkeypatch.setattr(workers, "claim", lambda name, count, own=own: own)
        work._write_kernel(made, plan.read(made), workers)
    alone, first, second = sums
    assert torch.equal(alone, first + second)
    assert not torch.equal(alone, first)
    assert alone.abs().max() > 2**40, "many digits are kept"


JOB = ["--model", "mlp", "--samples", "1000", "--k", "64", "--shard", "50", "--batch", "16"]


def command(folder: Path, processes: int = 0, *options: str, kind: str = "sparse") -> list[str]:
    """Return the command that runs a job of 1,000 rows in a few seconds; 0: without torchrun."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    launch = [*launch, *options] if processes else []
    arguments = ["--out", str(folder), "--device", "cpu", "--kind", kind, *JOB]
    return [sys.executable, *launch, "-m", "helpers.features", *arguments]


def written(folder: Path, processes: int = 0, kind: str = "sparse") -> dict[str, bytes]:
    asked = command(folder, processes, kind=kind)
    subprocess.run(asked, cwd=ROOT, check=True, capture_output=True)
    return contents(folder)


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["sparse", "factored"])
def test_processes_give_the_bits_of_one(kind, tmp_path):
    expected = written(tmp_path / "alone", kind=kind)
    for processes in (1, 2, 4):
        assert written(tmp_path / str(processes), processes, kind) == expected, processes


def wait_for_shards(folder: Path, count: int) -> None:
    until = time.monotonic() + 120
    while len(list(folder.glob("features-*.npy"))) < count and time.monotonic() < until:
        time.sleep(0.02)


def ranks(parent: int) -> list[int]:
    """List the processes that torchrun has started."""
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in listed]


@pytest.mark.whole
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system lists no children")
def test_a_killed_process_loses_nothing(tmp_path):
    expected = written(tmp_path / "alone")
    draw = random.Random(0)
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        run = subprocess.Popen(command(folder, 2, "--max-restarts", "3"), cwd=ROOT, **said)
        wait_for_shards(folder, 1)
        time.sleep(draw.uniform(0, 0.5))
        killed = [os.kill(pid, signal.SIGKILL) for pid in ranks(run.pid)[:1]]
        said, _ = run.communicate(timeout=200)
        assert run.returncode == 0, said
        assert contents(folder) == expected
        if killed and attempt == 0:
            assert "restarts: 1" in said, said


@pytest.mark.whole
def test_a_killed_job_goes_on_from_where_it_was(tmp_path):
    expected = written(tmp_path / "alone")
    folder = tmp_path / "killed"
    options = {"cwd": ROOT, "stderr": subprocess.DEVNULL}
    run = subprocess.Popen(command(folder, 2), start_new_session=True, **options)
    wait_for_shards(folder, 3)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    kept = {file.name: file.stat().st_mtime_ns for file in folder.glob("features-*.npy")}
    assert len(kept) >= 3
    assert written(folder, 2) == expected
    assert {name: (folder / name).stat().st_mtime_ns for name in kept} == kept
    assert json.loads((folder / "plan.json").read_text())["samples"] == 1000
