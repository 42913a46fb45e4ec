"""What goes into a bundle, and how its script works through its steps."""

import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from helpers.tooling.bundle import __main__ as bundle
from helpers.tooling.bundle import measure
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
        folder, pin = Path(arguments[-2]), arguments[-1]
        name = pin.partition("==")[0]
        if arguments[0] == "download" and name == "published":
            (folder / f"{name}-1-cp312-cp312-manylinux_2_28_x86_64.whl").touch()
        elif arguments[0] == "wheel" and name == "pure":
            (folder / f"{name}-1-py3-none-any.whl").touch()
        elif arguments[0] == "wheel" and name == "compiled":
            (folder / f"{name}-1-cp311-cp311-linux_x86_64.whl").touch()
        else:
            return f"no {pin}"
        return None

    monkeypatch.setattr(bundle, "_pip", call)


@pytest.mark.usefixtures("pip")
def test_wheels_are_published_or_built_where_that_serves_the_machine(tmp_path):
    wanted = dict.fromkeys(("published", "pure", "compiled", "absent"), "1")
    missing = bundle.download(wanted, "3.12", tmp_path)
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == ["published", "pure"]
    assert missing == [
        "compiled==1: no wheel is published, and one built here is for this machine",
        "absent==1: no absent==1",
    ]


@pytest.mark.usefixtures("pip")
def test_the_archive_holds_the_collection_the_wheels_and_the_script(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bundle, "FOLDER", tmp_path / "bundle")
    monkeypatch.setattr(bundle, "pins", lambda *_: {"pure": "1"})
    monkeypatch.chdir(ROOT)
    assert bundle.main([]) == 0
    assert "1 packages" in capsys.readouterr().out
    with tarfile.open(tmp_path / "bundle.tar.gz") as tar:
        names = set(tar.getnames())
    for name in ("collection/notebooks/01_naive_loop.ipynb", "collection/helpers/gradients.py"):
        assert f"bundle/{name}" in names
    for name in ("collection/tests/device_cases.py", "collection/.pytest.ini", "measure.py"):
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
        "COLLECTION": tmp_path / "collection",
        "RESULTS": tmp_path / "results",
    }.items():
        monkeypatch.setattr(measure, name, path)
    monkeypatch.setattr(sys, "argv", ["measure.py", "--device", "cpu"])

    def plan(*steps):
        made = [
            measure.Step(name, limit, [sys.executable, "-c", source], needed)
            for name, limit, source, needed in steps
        ]
        monkeypatch.setattr(measure, "steps", lambda device: made)

    return plan


def results():
    """Read how the steps went."""
    state = json.loads((measure.RESULTS / "steps.json").read_text())
    return {name: about["result"] for name, about in state.items()}


def test_a_step_that_failed_is_tried_again_and_one_that_passed_is_not(machine, tmp_path):
    once = (
        f"open({str(tmp_path / 'once')!r}, 'x'); import os; print('on', os.environ['TEST_DEVICE'])"
    )
    failing = f"import sys; sys.exit(not __import__('os').path.exists({str(tmp_path / 'now')!r}))"
    machine(("first", 60, once, True), ("second", 60, failing, False))
    assert measure.main() == 1
    assert results() == {"first": "passed", "second": "failed"}
    (tmp_path / "now").touch()
    assert measure.main() == 0
    assert results() == {"first": "passed", "second": "passed"}
    assert (measure.RESULTS / "summary.txt").read_text().startswith("first: passed, ")
    assert "    on cpu\n" in (measure.RESULTS / "summary.txt").read_text()


def test_a_step_has_its_time_and_leaves_no_process(machine, tmp_path):
    pid = tmp_path / "pid"
    source = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; "
        f"time.sleep(60)']); open({str(pid)!r}, 'w').write(str(child.pid)); child.wait()"
    )
    machine(("slow", 2, source, False), ("after", 60, "", False))
    start = time.monotonic()
    assert measure.main() == 1
    assert time.monotonic() - start < 30
    assert results() == {"slow": "out of time", "after": "passed"}
    status = Path(f"/proc/{pid.read_text()}/status")
    assert not status.exists() or "Z (zombie)" in status.read_text()


def test_nothing_follows_a_step_that_all_need(machine):
    machine(("first", 60, "raise SystemExit('no torch here')", True), ("second", 60, "", False))
    assert measure.main() == 1
    assert results() == {"first": "failed"}
    assert "no torch here" in (measure.RESULTS / "logs" / "first.txt").read_text()


def test_the_whole_has_its_time(machine, monkeypatch):
    monkeypatch.setattr(measure, "WHOLE", 0)
    machine(("first", 60, "", False))
    assert measure.main() == 1
    assert results() == {"first": "no time left"}


def test_the_script_needs_nothing_but_python():
    command = [sys.executable, "-I", "-S", str(bundle.SCRIPT), "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "results" in done.stdout
