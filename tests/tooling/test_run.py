"""Runs of lessons: what is refused, what is reported, and what is left behind."""

import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version

import psutil
import pytest
import torch

from helpers.tooling import run
from helpers.tooling.lesson import execution, files, parameters
from tests.tooling.samples import DOOR, LESSONS, SIZES, code, good_lesson, lesson, save


def test_every_failure_is_reported_at_the_end(desk, capfd):
    given = 'assert (device, dataset, batch_size) == ("cpu", "random", 7)'
    where = "import os\nassert os.path.basename(os.getcwd()) == 'notebooks'"
    save(lesson(code("given", given), code("where", where)), "01_a")
    save(lesson(code("divide", "# a comment\n1 / 0"), code("after", "1")), "02_b")
    save(lesson(code("die", "import os\nos._exit(1)"), code("after", "1")), "03_c")
    save(lesson(code("raise", "raise ValueError('no')")), "04_d")
    build = desk / "build" / "cpu"
    build.mkdir(parents=True)
    for earlier in ("02_b.ipynb", "01_a.failed.ipynb"):
        (build / earlier).write_text("of an earlier run")

    status = run.main(["--device", "cpu", "--params", "batch_size=7", "dataset=random"])

    assert status == 1
    shown = capfd.readouterr()
    for row in (r"01_a +passed +{} +\d+ MiB\n", "02_b +failed +{}", "03_c +failed +{} +unknown\n"):
        assert re.search(row.format(r"\d+\.\d s"), shown.out)
    failures = re.findall("failed: .*(?=; see build/cpu/0._..failed.ipynb)", shown.err)
    assert failures == [
        "failed: 02_b.ipynb, cell 3 (divide) `# a comment`: ZeroDivisionError: division by zero",
        "failed: 03_c.ipynb, cell 3 (die) `import os`: the kernel died (of too little memory, "
        "perhaps)",
        "failed: 04_d.ipynb, cell 3 (raise) `raise ValueError('no')`: ValueError: no",
    ]
    left = ["01_a.ipynb", *(f"{stem}.failed.ipynb" for stem in ("02_b", "03_c", "04_d"))]
    assert sorted(path.name for path in build.iterdir()) == left
    about = files.read(build / "02_b.failed.ipynb").metadata[run.METADATA]
    assert about.failure.endswith("ZeroDivisionError: division by zero")
    assert about.seconds > 0
    assert about.peak_memory.host > 10e6
    sizes = {"dataset": "random", "batch_size": 7, "hidden": 20, "seed": 0}
    assert about.parameters == {"device": "cpu", **sizes}
    assert about.versions.torch == version("torch")
    assert about.machine.threads == torch.get_num_threads()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", about.date)


def test_peak_memory_is_the_lessons_own(desk):
    path = save(lesson(code("hold", "held = bytearray(100_000_000)\ndel held")), "01_a")
    result = run.run(path, {"device": "cpu"}, desk / "build")
    assert result.failure is None
    assert 100e6 < result.peak_memory["host"] < 250e6  # this process, with torch, holds more


def test_cell_that_takes_too_long(desk, monkeypatch):
    monkeypatch.setattr(execution, "CELL_TIMEOUT", 1)
    path = save(lesson(code("wait", "import time\ntime.sleep(1000)")), "01_a")
    result = run.run(path, {"device": "cpu"}, desk / "build")
    assert result.failure.endswith("(wait) `import time`: the cell took longer than 1 seconds")


REFUSED = {
    "unknown parameter": (["--params", "devcie=cuda"], "01_good.ipynb has no parameter 'devcie', "),
    "no number": (["--params", "batch_size=many"], "batch_size must be a whole number, at least 1"),
    "too small": (["--params", "hidden=0"], "hidden must be a whole number, at least 1, got 0"),
    "too many": (["--params", "batch_size=1798"], "the digits are 1797 samples"),
    "dataset": (["--params", "dataset=cats"], "dataset must be 'digits' or 'random', got 'cats'"),
    "no value": (["--params", "hidden"], "a parameter is given as name=value, got 'hidden'"),
    "device as parameter": (["--params", "device=cpu"], "the device is not set in PARAMS: say"),
    "no device": (["--device", "cdua"], "device is auto, cpu, cuda, cuda:1 or mps, got 'cdua'"),
    "device": (["--device", "cuda:99"], "device 'cuda:99' is not on this machine, which has "),
    "lesson": (["1", "7"], "there is no lesson '7', there are 01_good"),
}


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_will_not_do_is_refused_before_anything_runs(arguments, sentence, desk, capsys):
    save(good_lesson(), "01_good")
    assert run.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(sentence)
    assert shown.err.count("\n") == 1
    assert not (desk / "build").exists()


@pytest.mark.usefixtures("desk")
def test_choosing_lessons():
    paths = [save(good_lesson(), stem) for stem in ("01_good", "02_bad", "10_late")]
    assert files.choose([]) == paths
    assert files.choose(["10", "1"]) == [paths[0], paths[2]]
    assert files.choose(["02_bad", "notebooks/02_bad.ipynb"]) == [paths[1]]


IN_A_TASK = """\
import asyncio, os, signal
from helpers.tooling.lesson import execution

async def run():
    os.kill(os.getpid(), signal.SIGTERM)

execution.end_cleanly_on_signals()
loop = asyncio.new_event_loop()
loop.run_until_complete(loop.create_task(run()))
"""


def test_signal_amid_a_task_is_not_told_as_a_fault(desk):
    command = [sys.executable, "-c", IN_A_TASK]
    done = subprocess.run(command, cwd=desk, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "")


@pytest.mark.whole
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_killed_half_way(number, status, desk):
    waits = "import time\nopen('started', 'w').close()\ntime.sleep(1000)"
    save(lesson(code("sum", "1 + 1")), "00_first")
    save(lesson(code("wait", waits)), "01_a")
    build = desk / "build" / "cpu"
    build.mkdir(parents=True)
    (build / "01_a.ipynb").write_text("of an earlier run")
    command = [sys.executable, "-m", "helpers.tooling.run", "--device", "cpu"]
    with open("errors", "w") as errors, open("said", "w") as said:
        process = subprocess.Popen(command, stderr=errors, stdout=said)
    deadline = time.monotonic() + 60
    while not (desk / "notebooks" / "started").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    kernels = psutil.Process(process.pid).children(recursive=True)
    assert kernels

    process.send_signal(number)

    assert process.wait(timeout=20) == status
    told = "1 of 2 lessons came to their end" in (desk / "said").read_text()
    assert told == (number != signal.SIGKILL)
    assert sorted(path.name for path in build.iterdir()) == ["00_first.ipynb", "01_a.ipynb"]
    assert (build / "01_a.ipynb").read_text() == "of an earlier run"
    _, alive = psutil.wait_procs(kernels, timeout=20)
    assert not alive
    assert "Traceback" not in (desk / "errors").read_text()


@pytest.mark.whole
@pytest.mark.parametrize("path", [DOOR, *LESSONS], ids=lambda path: path.stem)
def test_lesson_runs_on_the_random_stand_in(path, tmp_path):
    sizes = [f"{name}={value}" for name, value in SIZES.get(path.stem, {}).items()]
    values = parameters.check(path, ["dataset=random", "batch_size=4", *sizes], "cpu")
    result = run.run(path, values, tmp_path)
    assert result.failure is None
    assert (tmp_path / path.name).exists()
