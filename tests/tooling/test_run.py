"""Runs of lessons: what is refused, what is reported, and what is left behind."""

import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch

from helpers.tooling import outputs, run
from helpers.tooling.lesson import drafts, execution, files, parameters
from tests.lessons.tried import SIZES
from tests.support.samples import DOOR, LESSONS, cell, code, good_lesson, lesson, save


def test_every_failure_is_reported_at_the_end(desk, capfd, monkeypatch):
    monkeypatch.setitem(execution.OPTIONS, "timeout", 5)
    given = 'assert (device, dataset, batch_size) == ("cpu", "random", 7)'
    where = "import os\nassert os.path.basename(os.getcwd()) == 'notebooks'"
    held = "held = bytearray(100_000_000)\ndel held"
    save(lesson(code("given", given), code("where", where), code("hold", held)), "01_a")
    save(lesson(code("divide", "1 / 0"), code("after", "1")), "02_b")
    save(lesson(code("die", "import os\nos._exit(1)"), code("after", "1")), "03_c")
    save(lesson(code("wait", "import time\ntime.sleep(1000)")), "04_d")
    build = desk / "build" / "cpu"
    build.mkdir(parents=True)
    (build / "02_b.ipynb").write_text("of an earlier run", "utf-8")
    (build / "table.txt").write_text("of an earlier run", "utf-8")
    (build / "earlier.txt").hardlink_to(build / "table.txt")

    assert run.main(["--device", "cpu", "--params", "batch_size=7", "dataset=random"]) == 1

    shown = capfd.readouterr()
    for row in (r"01_a +passed +{} +(\d+) MiB", "02_b +failed +{}", "03_c +failed +{}"):
        assert re.search(row.format(r"\d+\.\d s"), shown.out)
    peak = int(re.search(r"01_a.* (\d+) MiB", shown.out)[1])
    assert 100 < peak < 250  # the lesson's own: this process, with torch, holds more
    assert (build / "table.txt").read_text("utf-8") in shown.out
    assert (build / "earlier.txt").read_text("utf-8") == "of an earlier run", "cut in place"
    words = {"02_b": "divide): ZeroDivision", "03_c": "die): Kernel died", "04_d": "wait): A"}
    for stem, word in words.items():
        said = rf"failed: {stem}.ipynb, cell 3 \({re.escape(word)}.*; see build/cpu/{stem}.failed"
        assert re.search(said, shown.err)
    left = ["01_a.ipynb", *(f"{stem}.failed.ipynb" for stem in words)]
    assert sorted(path.name for path in build.glob("*.ipynb")) == left


def test_a_kernel_that_does_not_start_is_a_failure_as_any_other(desk, capfd, monkeypatch):
    dies = "--IPKernelApp.exec_lines=import os; os._exit(1)"
    monkeypatch.setitem(execution.OPTIONS, "extra_arguments", [dies])
    save(good_lesson(), "01_good")
    assert run.main(["--device", "cpu"]) == 1
    shown = capfd.readouterr()
    assert re.search(r"01_good +failed +\d+\.\d s", shown.out)
    assert "failed: 01_good.ipynb, before its first cell: Kernel died before" in shown.err


HOLDS = """
import time
from pathlib import Path
from helpers.tooling.lesson import drafts
build = Path("build")
with drafts.alone(build / "cpu/01_good.ipynb"), drafts.alone(build / "outputs/01_good.ipynb"):
    print("held", flush=True)
    time.sleep(1000)
"""


def test_the_second_of_two_commands_is_refused_until_the_first_has_ended(desk, capsys):
    path = save(good_lesson(), "01_good")
    first = subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE)
    first.stdout.readline()
    assert run.main(["--device", "cpu"]) == 2
    assert outputs.main([]) == 1
    said = capsys.readouterr().err
    for folder in ("cpu", "outputs"):
        assert f"process {first.pid} is making build/{folder}/{path.name}: wait" in said
    first.kill()
    first.communicate()  # closes its pipe, too
    for folder in ("cpu", "outputs"):
        with drafts.alone(desk / "build" / folder / path.name):
            pass


@pytest.mark.parametrize(
    ("command", "link", "place"),
    [
        ("run --device cpu", "build/cpu/01_good.failed.ipynb", "/dev/full"),
        ("outputs", "build", "/proc"),
    ],
)
def test_where_nothing_can_be_written_one_sentence_says_so(command, link, place, desk, monkeypatch):
    """On a disk that is full, or in a tree that is read-only."""
    monkeypatch.setenv("TQDM_DISABLE", "1")
    save(good_lesson(), "01_good")
    (desk / link).parent.mkdir(parents=True, exist_ok=True)
    (desk / link).symlink_to(place)
    call = [sys.executable, "-m", *f"helpers.tooling.{command}".split()]
    done = subprocess.run(call, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert re.match("No space left on device|build/outputs: No such file", done.stderr)


REFUSED = [
    (["--params", "devcie=cuda"], "'devcie'"),
    (["--params", "batch_size=many"], "'many'"),
    (["--params", "hidden=0"], "from 1"),
    (["--params", "seed=4294967296"], "4294967295"),
    (["--params", "batch_size=1798"], "1797"),
    (["--params", "dataset=cats"], "'cats'"),
    (["--params", "hidden"], "name=value"),
    (["--params", "device=cpu"], "DEVICE"),
    (["--device", "cdua"], "'cdua'"),
    (["--device", "cuda:99"], "'cuda:99'"),
    (["1", "7"], "'7'"),
]


AT_ONCE = """
import sys
from helpers.tooling import run
run.main(["--params", "devcie=cpu"])
for name in ("torch", "nbformat", "papermill"):
    assert name not in sys.modules, name
"""


def test_what_will_not_do_is_refused_before_anything_runs(desk, capsys):
    save(good_lesson(), "01_good")
    for arguments, word in REFUSED:
        assert run.main(arguments) == 2
        said = capsys.readouterr().err
        assert (word in said, said.count("\n")) == (True, 1), said
    assert not (desk / "build").exists()
    # And the first of them within a second, without what takes longer to import.
    subprocess.run([sys.executable, "-c", AT_ONCE], cwd=desk, check=True)


@pytest.mark.usefixtures("desk")
def test_choosing_lessons():
    stems = ("01_good", "02_bad", "02b_more", "10_late")
    paths = [save(good_lesson(), stem) for stem in stems]
    assert files.choose([]) == paths
    assert files.choose(["10", "1"]) == [paths[0], paths[3]]
    # A number is one page: its second has a letter.
    assert files.choose(["2"]) == files.choose(["02"]) == [paths[1]]
    assert files.choose(["2b"]) == files.choose(["02b"]) == [paths[2]]
    assert files.choose(["02_bad", "notebooks/02_bad.ipynb"]) == [paths[1]]


NOTES = """
import os, time
begun = time.time()
time.sleep(2)
print(begun, time.time(), os.environ.get("OMP_NUM_THREADS"))
"""


def test_lessons_run_side_by_side_but_not_those_that_measure_time(desk, monkeypatch, capfd):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    timed = save(lesson(code("notes", f"from torch.utils.benchmark import Timer\n{NOTES}")), "01_a")
    first = save(lesson(code("notes", NOTES)), "02_b")
    second = save(lesson(code("notes", NOTES)), "03_c")
    dies = "import os\nos.kill(os.getppid(), 9)"
    killed = save(lesson(code("dies", dies)), "04_d")
    # Neither what goes past the kernel to the standard output nor a long error stops the others.
    fails = "import os\nos.system('echo printed')\nraise ValueError('long' * 100_000)"
    failed = save(lesson(code("fails", fails)), "05_e")

    assert run.main(["--device", "cpu"]) == 1

    noted = {}
    for path in (timed, first, second):
        executed = files.read(desk / "build" / "cpu" / path.name)
        begun, ended, threads = cell(executed, "notes").outputs[0].text.split()
        noted[path] = (float(begun), float(ended), threads)
    assert max(noted[first][0], noted[second][0]) < min(noted[first][1], noted[second][1])
    assert noted[first][2] == noted[second][2] == "1", "its share of two threads"
    assert noted[timed][0] > max(noted[first][1], noted[second][1])
    assert noted[timed][2] == "None", "all threads"
    shown = capfd.readouterr()
    results = ["passed", "passed", "passed", "failed", "failed"]
    assert re.findall(r"(?m)^0._. +(\w+) ", shown.out) == results
    assert f"failed: {killed.name}: its process ended with status -9" in shown.err
    assert f"failed: {failed.name}, cell 3 (fails): ValueError: longlong" in shown.err


@pytest.mark.whole
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_killed_half_way(number, status, threads, desk, monkeypatch):
    """One lesson after another, on one thread, or side by side, on two."""
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    waits = "import time\nopen('started', 'w').close()\ntime.sleep(1000)"
    save(lesson(code("sum", "1 + 1")), "00_first")
    save(lesson(code("wait", waits)), "01_a")
    build = desk / "build" / "cpu"
    build.mkdir(parents=True)
    (build / "01_a.ipynb").write_text("of an earlier run", "utf-8")
    command = [sys.executable, "-m", "helpers.tooling.run", "--device", "cpu"]
    with open("errors", "w", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stderr=errors)
    first = build / "00_first.ipynb"
    while not (desk / "notebooks" / "started").exists() or not first.exists():
        assert process.poll() is None
        time.sleep(0.1)
    kernels = psutil.Process(process.pid).children(recursive=True)
    assert kernels

    process.send_signal(number)

    assert process.wait(timeout=20) == status
    assert "1 of 2 lessons" in (build / "table.txt").read_text("utf-8")
    left = ["00_first.ipynb", "01_a.failed.ipynb", "01_a.ipynb"]
    assert sorted(path.name for path in build.glob("*.ipynb")) == left
    assert (build / "01_a.ipynb").read_text("utf-8") == "of an earlier run"
    _, alive = psutil.wait_procs(kernels, timeout=20)
    assert not alive
    assert "Traceback" not in (desk / "errors").read_text("utf-8")


@pytest.mark.whole
def test_without_the_command_no_lesson_goes_on(desk, monkeypatch):
    """Where it was killed, it could end nothing itself."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    waits = "import time\nopen('started', 'w').close()\ntime.sleep(1000)"
    save(lesson(code("wait", waits)), "00_a")
    save(lesson(code("wait", waits)), "01_b")
    process = subprocess.Popen([sys.executable, "-m", "helpers.tooling.run", "--device", "cpu"])
    while not (desk / "notebooks" / "started").exists():
        assert process.poll() is None
        time.sleep(0.1)
    started = psutil.Process(process.pid).children(recursive=True)
    assert len(started) >= 2
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(started, timeout=20)
    for each in alive:
        each.kill()
    assert not alive


def ranges(path):
    """Read what a lesson says its parameters may be: {name: (least, most or None)}."""
    declared = parameters.declared(path)
    found = {}
    for name, (_, meaning) in declared.items():
        match = re.search(r"; (\w+) (?:to (\d+)|or more)$", meaning)
        if match:
            least, most = match.groups()
            if least in declared:  # another parameter
                least, _ = declared[least]
            found[name] = int(least), most and int(most)
    return found


@pytest.mark.parametrize("path", [*filter(ranges, [DOOR, *LESSONS])], ids=lambda path: path.stem)
def test_a_size_beyond_its_range_is_refused_in_one_sentence_before_anything_else(path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    source = files.code_cells(files.read(path))[1].source
    checks = re.match(r"(?s).*(?:check_count|raise ValueError)\([^\n]+", source)[0]
    defaults = {}
    for name, (default, _) in parameters.declared(path).items():
        defaults[name] = default
    for name, (least, most) in ranges(path).items():
        for allowed in (least, most or 10**9):
            exec(checks, defaults | {name: allowed})
        for refused in (least - 1, most + 1) if most else (least - 1,):
            with pytest.raises(ValueError, match=rf"^{name} must be [^\n]*, got {refused}$"):
                exec(checks, defaults | {name: refused})


@pytest.mark.whole
@pytest.mark.parametrize("path", [DOOR, *LESSONS], ids=lambda path: path.stem)
def test_lesson_runs_on_the_random_stand_in(path, tmp_path):
    least, _ = ranges(path).get("batch_size", (1, None))
    given = ["dataset=random", f"batch_size={max(least, 4)}"]
    for name, value in SIZES.get(path.stem, {}).items():
        given.append(f"{name}={value}")
    values = parameters.check(path, given)
    done = execution.execute(path, tmp_path / path.name, values)
    assert done.failure is None
