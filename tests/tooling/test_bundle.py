"""What goes into a bundle, and how its script works through its steps."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from helpers.study import comparison, records
from helpers.study.facts import Candidate, Row, Study, Task
from helpers.tooling.bundle import __main__ as bundle
from helpers.tooling.bundle import measure, targets
from tests.tooling.samples import ROOT

LOCK = "# made\ntorch==2.13.0\nnumpy==2.4.6\njupyter_client==8.10.0\nruff==0.17.5\ntraker==0.3.2\n"


def test_what_the_machine_has_stays_here():
    assert bundle.pins(LOCK) == {
        "numpy": "2.4.6",
        "jupyter_client": "8.10.0",
        "traker": "0.3.2",
    }
    have = "numpy==2.5.2\n# a comment\nJupyter-Client @ file:///somewhere\n"
    assert bundle.pins(LOCK, have) == {"traker": "0.3.2"}


def test_a_lock_that_does_not_pin_is_refused():
    with pytest.raises(ValueError, match="must hold lines name==version, got 'numpy>=2'"):
        bundle.pins("numpy>=2\n")


@pytest.fixture
def pip(monkeypatch):
    """Stand in for pip: it has wheels of some packages, can build some, and notes its calls."""

    def call(*arguments):
        at = arguments.index("-d" if arguments[0] == "download" else "-w") + 1
        folder, pins = Path(arguments[at]), arguments[at + 1 :]
        name = pins[0].partition("==")[0]
        if "broken==1" in pins:
            return "there is no network"
        if arguments[0] == "download":
            for pin in pins:
                if not pin.startswith("published"):
                    return f"No matching distribution found for {pin}"
            for pin in pins:
                wheel = f"{pin.replace('==', '-')}-cp312-cp312-manylinux_2_28_x86_64.whl"
                (folder / wheel).touch()
        elif name == "pure":
            (folder / f"{name}-1-py3-none-any.whl").touch()
        elif name == "compiled":
            (folder / f"{name}-1-cp311-cp311-linux_x86_64.whl").touch()
        else:
            return f"no {pins[0]}"
        return None

    monkeypatch.setattr(bundle, "_pip", call)


@pytest.mark.usefixtures("pip")
def test_wheels_are_published_or_built_where_that_serves_the_machine(tmp_path):
    wanted = dict.fromkeys(("published", "pure", "compiled", "absent", "published-2"), "1")
    missing = bundle.download(wanted, "3.12", tmp_path)
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == [
        "published",
        "published",
        "pure",
    ]
    assert missing == [
        "compiled==1: no wheel is published, and one built here is for this machine",
        "absent==1: no absent==1",
    ]


@pytest.mark.usefixtures("pip")
def test_what_pip_says_of_no_package_ends_it(tmp_path):
    wanted = {"published": "1", "broken": "1"}
    assert bundle.download(wanted, "3.12", tmp_path) == ["there is no network"]


@pytest.mark.usefixtures("pip")
def test_the_archive_holds_the_collection_the_wheels_and_the_script(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bundle, "FOLDER", tmp_path / "bundle")
    monkeypatch.setattr(bundle, "pins", lambda *_: {"pure": "1"})
    monkeypatch.chdir(ROOT)
    assert bundle.main([]) == 0
    assert "1 packages" in capsys.readouterr().out
    with tarfile.open(tmp_path / "bundle.tar.gz") as tar:
        names = set(tar.getnames())
        assert tar.extractfile("bundle/python-version").read() == b"3.12\n"
    for name in ("collection/notebooks/01_naive_loop.ipynb", "collection/helpers/gradients.py"):
        assert f"bundle/{name}" in names
    for name in (
        "collection/tests/support/device_cases.py",
        "collection/.pytest.ini",
        "measure.py",
    ):
        assert f"bundle/{name}" in names
    assert "bundle/wheels/pure-1-py3-none-any.whl" in names


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--python-version", "3"], "PYTHON_VERSION must be such as 3.12, got '3'\n"),
        (["--have", "no.txt"], "HAVE must be a file with a list of packages, there is no no.txt\n"),
    ],
)
def test_bad_input_is_refused(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert bundle.main(arguments) == 2
    assert capsys.readouterr().err == sentence
    assert not list(tmp_path.iterdir())


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """An unpacked bundle, and steps that only this machine's Python does."""
    (tmp_path / "collection").mkdir()
    for name, path in {
        "HERE": tmp_path,
        "COLLECTION": tmp_path / "collection",
        "RESULTS": tmp_path / "results",
        "WANTED": tmp_path / "python-version",
    }.items():
        monkeypatch.setattr(measure, name, path)
    monkeypatch.setattr(sys, "argv", ["measure.py", "--device", "cpu"])

    def plan(*steps):
        made = [
            measure.Step(name, limit, [sys.executable, "-c", source], **options)
            for name, limit, source, options in steps
        ]
        monkeypatch.setattr(measure, "steps", lambda device: made)

    return plan


def results():
    """Read how the steps went."""
    state = json.loads((measure.RESULTS / "cpu" / "steps.json").read_text())
    return {name: about["result"] for name, about in state.items()}


def summary():
    """Read the summary."""
    return (measure.RESULTS / "cpu" / "summary.txt").read_text()


def test_a_step_that_failed_is_tried_again_and_one_that_passed_is_not(machine, tmp_path):
    once = f"open({str(tmp_path / 'once')!r}, 'x'); from os import environ as e; "
    once += "print('on', e['TEST_DEVICE'], e['TQDM_DISABLE'])"
    failing = f"import sys; sys.exit(not __import__('os').path.exists({str(tmp_path / 'now')!r}))"
    report = f"open({str(tmp_path / 'reports')!r}, 'a').write('report\\n')"
    machine(
        ("first", 60, once, {"needed": True, "shown": 5}),
        ("second", 60, failing, {}),
        ("report", 60, report, {"again": True}),
    )
    assert measure.main() == 1
    assert results() == {"first": "passed", "second": "failed", "report": "passed"}
    (tmp_path / "now").touch()
    assert measure.main() == 0
    assert results() == {"first": "passed", "second": "passed", "report": "passed"}
    assert (tmp_path / "reports").read_text() == "report\n" * 2  # of all that there is by then
    assert summary().startswith("3 of 3 steps passed")
    assert "    on cpu 1\n" in summary()


def test_what_failed_before_waits_for_what_was_never_tried(machine, tmp_path):
    note = f"open({str(tmp_path / 'order')!r}, 'a').write('{{}} '); raise SystemExit({{}})"
    machine(("first", 60, note.format("first", 1), {}), ("report", 60, "", {"again": True}))
    assert measure.main() == 1
    machine(
        ("first", 60, note.format("first", 1), {}),
        ("second", 60, note.format("second", 0), {}),
        ("report", 60, note.format("report", 0), {"again": True}),
    )
    assert measure.main() == 1
    assert (tmp_path / "order").read_text() == "first second first report "


def test_what_passed_on_one_device_is_done_on_another(machine, monkeypatch):
    machine(("first", 60, "", {}))
    assert measure.main() == 0
    monkeypatch.setattr(sys, "argv", ["measure.py", "--device", "cuda:1"])
    assert measure.main() == 0
    assert (measure.RESULTS / "cuda-1" / "logs" / "first.txt").exists()


def test_the_summary_names_all_steps_and_says_why_one_failed(machine):
    machine(
        ("first", 60, "print('a secret of success')", {}),
        ("second", 60, "raise SystemExit('no torch here')", {"needed": True}),
        ("third", 60, "", {}),
    )
    assert measure.main() == 1
    first, second, third = summary().splitlines()[2:5]
    assert first.startswith("first   passed ")
    assert second.startswith("second  failed ")
    assert third.startswith("third   not yet ")
    assert "    no torch here\n" in summary()
    assert "secret" not in summary()


def test_a_step_has_its_time_and_leaves_no_process(machine, tmp_path):
    pid = tmp_path / "pid"
    source = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; "
        f"time.sleep(60)']); open({str(pid)!r}, 'w').write(str(child.pid)); child.wait()"
    )
    machine(("slow", 2, source, {}), ("after", 60, "", {}))
    start = time.monotonic()
    assert measure.main() == 1
    assert time.monotonic() - start < 30
    assert results() == {"slow": "out of time", "after": "passed"}
    assert ended(int(pid.read_text()))


def ended(pid):
    """Say whether a process is over."""
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "Z (zombie)" in status.read_text()


SCRIPT_OF_ONE_STEP = """\
import sys
from helpers.tooling.bundle import measure
from pathlib import Path
measure.HERE = Path(sys.argv.pop(1))
measure.COLLECTION, measure.RESULTS = measure.HERE / "collection", measure.HERE / "results"
wait = f"import os, time; open({str(measure.HERE / 'pid')!r}, 'w').write(str(os.getpid())); "
command = [sys.executable, "-c", wait + "time.sleep(60)"]
measure.steps = lambda device: [measure.Step("slow", 60, command)]
measure.end_on_signals()
sys.exit(measure.main())
"""


def start_one_step(folder):
    """Start the script with a step that waits, and wait until it does."""
    (folder / "collection").mkdir(exist_ok=True)
    command = [sys.executable, "-c", SCRIPT_OF_ONE_STEP, str(folder), "--device", "cpu"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not ((folder / "pid").exists() and (folder / "pid").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process, int((folder / "pid").read_text())


def test_who_ends_the_script_ends_its_step(tmp_path):
    script, step = start_one_step(tmp_path)
    script.terminate()
    script.communicate()
    assert script.returncode == 128 + signal.SIGTERM
    assert ended(step)


def test_a_step_left_behind_is_not_run_beside_another(tmp_path, machine, capsys):
    script, step = start_one_step(tmp_path)
    try:
        script.kill()  # it can say nothing to its step
        script.communicate()
        machine(("first", 60, "", {}))
        assert measure.main() == 2
        assert f"(the step is process {step})" in capsys.readouterr().err
    finally:
        os.kill(step, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while measure.main() == 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert results() == {"first": "passed"}


def test_nothing_follows_a_step_that_all_need(machine):
    machine(
        ("first", 60, "raise SystemExit('no torch here')", {"needed": True}),
        ("second", 60, "", {}),
    )
    assert measure.main() == 1
    assert results() == {"first": "failed"}
    assert "no torch here" in (measure.RESULTS / "cpu" / "logs" / "first.txt").read_text()


def test_the_whole_has_its_time_and_keeps_some_for_the_report(machine, monkeypatch):
    monkeypatch.setattr(measure, "WHOLE", measure.RESERVED)
    machine(("first", 60, "", {}), ("report", 60, "", {"again": True}))
    assert measure.main() == 1
    assert results() == {"first": "no time left", "report": "passed"}


def test_a_step_without_time_stays_what_it_was(machine, monkeypatch):
    machine(("first", 60, "raise SystemExit('no torch here')", {}))
    assert measure.main() == 1
    monkeypatch.setattr(measure, "WHOLE", measure.RESERVED)
    assert measure.main() == 1
    assert results() == {"first": "failed"}
    assert "    no torch here\n" in summary()


def test_another_python_than_that_of_the_wheels_is_refused(machine, capsys):
    machine(("first", 60, "", {}))
    measure.WANTED.write_text("3.99\n")
    assert measure.main() == 2
    assert "the wheels are for Python 3.99" in capsys.readouterr().err
    assert not measure.RESULTS.exists()


def test_a_python_without_torch_is_refused(machine, monkeypatch, capsys):
    machine(("first", 60, "", {}))
    monkeypatch.setattr(measure.importlib.util, "find_spec", lambda name: None)
    assert measure.main() == 2
    assert "has no PyTorch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "visible"), [("cuda", None), ("cuda:1", "1"), ("cpu", ""), ("mps", "")]
)
def test_each_lesson_there_is_has_its_steps(device, visible, tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    for name in ("01_one.ipynb", "12_twelve.ipynb", "notes.txt"):
        (tmp_path / "notebooks" / name).touch()
    monkeypatch.setattr(measure, "COLLECTION", tmp_path)
    steps = {step.name: step for step in measure.steps(device)}
    names = [name for name in steps if name.startswith(("lesson-", "outputs-"))]
    assert names == ["lesson-01_one", "lesson-12_twelve", "outputs-01_one", "outputs-12_twelve"]
    assert steps["outputs-01_one"].environment.get("CUDA_VISIBLE_DEVICES") == visible


def row(method, median):
    """Make a row of a study."""
    return Row(Candidate(method), median, 0.0, 5, None, None, None, median)


def test_the_targets_are_judged_on_a_gpu_alone():
    rows = (row("batch gradient", 1.0), row("loop", 48.0), row("vmap(grad)", 2.0))
    study = Study("gradients", Task(), rows)
    (sentence,) = targets.verdicts(study, "loop", ["vmap(grad)"], None)
    assert sentence == "vmap(grad): 24.0 times as fast as the loop, 2.0 batch gradients"
    (said,) = targets.verdicts(study, "loop", ["vmap(grad)"], 25).items()
    assert said == (sentence.replace(" loop,", " loop (target 25: MISSED),"), False)
    (said,) = targets.verdicts(study, "loop", ["vmap(grad)"], 24).items()
    assert said == (sentence.replace(" loop,", " loop (target 24: reached),"), True)


def test_a_record_of_the_targets_is_left(tmp_path, monkeypatch, capsys):
    def run(group, task, chosen, **_):
        return Study(group, task, tuple(row(each.method, 1.0) for each in chosen[:-1]))

    monkeypatch.setattr(comparison, "run", run)
    monkeypatch.chdir(tmp_path)
    assert targets.main(["--device", "cpu"]) == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == ["loop was not measured", "double loop was not measured"]
    studies = records.read(tmp_path / "build" / "cpu" / "targets.json").studies
    assert [study.group for study in studies] == ["gradients", "jacobians"]
    assert targets.main(["--device", "abacus"]) == 2


def test_the_script_needs_nothing_but_python():
    command = [sys.executable, "-I", "-S", str(bundle.SCRIPT), "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "results" in done.stdout
