"""On a machine with a GPU and no network: run everything there, and leave one folder of results.

`python measure.py` beside the folders `collection` and `wheels` of a bundle. It needs a Python with
PyTorch, of the version that the wheels are for, and nothing else: it makes an environment on top of
what the machine has. The most telling steps come first, each with a time limit, and all together
end within 25 minutes. A step that is done is not done again, so a run that was stopped goes on
where it was. The results are in `results/`: a summary, logs and the state of the steps in the
folder of the device, and in `results/build/` what can be copied into the folder `build/` of a
clone, where `make report` shows it beside other runs.
"""

import argparse
import fcntl
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).absolute().parent
COLLECTION, WHEELS = HERE / "collection", HERE / "wheels"
ENVIRONMENT, RESULTS = HERE / "environment", HERE / "results"
PYTHON = str(ENVIRONMENT / "bin" / "python")
WANTED = HERE / "python-version"
"""The file that says for which Python the wheels are."""
WHOLE = 25 * 60
"""Seconds that all steps together may take."""
RESERVED = 60
"""Seconds of them that are kept for the last step."""
MAKE = f"import sys; sys.path.insert(0, {str(HERE)!r}); import measure; measure.make_environment()"
FACTS = """
import platform, sys, torch
from helpers import devices
print("Python", platform.python_version(), "torch", torch.__version__, "CUDA", torch.version.cuda)
try:
    device = devices.resolve(sys.argv[1])
except ValueError as error:
    sys.exit(str(error))
print(device, torch.cuda.get_device_properties(device) if device.type == "cuda" else "")
"""


@dataclass(frozen=True)
class Step:
    """One thing to do.

    Attributes:
        name: Of its log.
        limit: Seconds that it may take.
        command: What is run in the folder of the collection.
        needed: Whether nothing else can be done without it.
        again: Whether it is done in each run, at the end, in the time reserved.
        shown: How many of the last lines of its log are in the summary when it passed.
        environment: What is set for it beside the rest.
    """

    name: str
    limit: int
    command: list[str]
    needed: bool = False
    again: bool = False
    shown: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


def steps(device: str) -> list[Step]:
    """List what is done on a device, the most telling first; a step for each lesson there is."""
    lessons = sorted(path.stem for path in (COLLECTION / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    pytest = [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", "-q"]
    on = ["--device", device]
    short = ["--sizes", "tests/sizes.toml"]  # on which no compared cell depends
    # A lesson that is compared has its own parameters, and takes the best device that it sees.
    kind, _, index = device.partition(":")
    visible = {"CUDA_VISIBLE_DEVICES": index} if index or kind != "cuda" else {}
    return [
        Step("environment", 300, [sys.executable, "-c", MAKE], needed=True),
        Step("facts", 120, [PYTHON, "-c", FACTS, device], needed=True, shown=20),
        Step("targets", 300, [PYTHON, "-m", "helpers.tooling.bundle.targets", *on], shown=40),
        *(
            Step(f"lesson-{stem}", 300, [PYTHON, "-m", "helpers.tooling.run", stem, *on])
            for stem in lessons
        ),
        *(
            Step(
                f"outputs-{stem}",
                300,
                [*pytest, "--nbval-lax", *short, f"notebooks/{stem}.ipynb"],
                shown=1,
                environment=visible,
            )
            for stem in lessons
        ),
        Step("helpers", 300, [*pytest, "tests/device_cases.py"], shown=1),
        Step("bench", 600, [PYTHON, "-m", "helpers.tooling.bench", *on]),
        Step("report", RESERVED, [PYTHON, "-m", "helpers.tooling.report"], again=True, shown=1),
    ]


def main() -> int:
    """Do the steps that are not done.

    Returns:
        The exit status: 0 if all of them went well, 1 if not, 2 if nothing can be done here.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, mps or cpu")
    device = parser.parse_args().device
    if why := unfit():
        print(why, file=sys.stderr)
        return 2
    folder = RESULTS / device.replace(":", "-")
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    (RESULTS / "build").mkdir(exist_ok=True)
    build = COLLECTION / "build"
    if not build.exists():
        build.symlink_to(RESULTS / "build")
    state = folder / "steps.json"
    done = json.loads(state.read_text()) if state.exists() else {}
    with open(RESULTS / ".lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            print(
                "another run of this script, or a step that one left behind when it was killed, "
                f"is still at work in {HERE}: wait for it, or end it (the step is process "
                f"{lock.read()})",
                file=sys.stderr,
            )
            return 2
        work(device, folder, state, done, lock.fileno())
    print(f"The results are in {RESULTS}, the summary in {folder / 'summary.txt'}.")
    return int(any(each["result"] != "passed" for each in done.values()))


def work(device: str, folder: Path, state: Path, done: dict, lock: int) -> None:
    """Do what is not done, and note after each step how it went.

    What was tried before and did not pass comes behind what was never tried.

    Args:
        device: Where.
        folder: Of the logs and the summary.
        state: The file of what is done.
        done: What it held; it is brought up to date.
        lock: The open file that says that a step is running.
    """
    end = time.monotonic() + WHOLE
    plan = steps(device)
    tried = {step.name for step in plan if step.name in done and not step.needed}
    in_turn = sorted(plan, key=lambda step: (step.again, step.name in tried))
    for number, step in enumerate(in_turn, 1):
        if done.get(step.name, {}).get("result") == "passed" and not step.again:
            print(f"{number:>2} of {len(plan)} {step.name}: passed before", flush=True)
            continue
        left = end - time.monotonic()
        print(f"{number:>2} of {len(plan)} {step.name}: ", end="", flush=True)
        limit = min(step.limit, left if step.again else left - RESERVED)
        done[step.name] = about = run(step, device, limit, folder, lock)
        draft = state.with_suffix(".draft")
        draft.write_text(json.dumps(done, indent=1))
        draft.replace(state)
        (folder / "summary.txt").write_text(summary(plan, done, folder))
        print(f"{about['result']}, {about['seconds']} s", flush=True)
        if step.needed and about["result"] != "passed":
            print(log_of(folder, step).read_text(errors="replace")[-2000:], file=sys.stderr)
            return


def run(step: Step, device: str, limit: float, folder: Path, lock: int) -> dict[str, object]:
    """Do one step, with what it prints in its log.

    Returns:
        Its `result` (`"passed"`, `"failed"`, `"out of time"` or `"no time left"`) and `seconds`.
    """
    if limit <= 0:
        return {"result": "no time left", "seconds": 0.0}
    own = HERE / "scratch"  # not what a home folder holds, or cannot hold
    environment = {
        **os.environ,
        "TEST_DEVICE": device,
        "OMP_WAIT_POLICY": "passive",
        "IPYTHONDIR": str(own / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(own / "jupyter"),
        "MPLCONFIGDIR": str(own / "matplotlib"),
        **step.environment,
    }
    start = time.monotonic()
    with open(log_of(folder, step), "w") as log:
        process = subprocess.Popen(
            step.command,
            cwd=COLLECTION,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock,),
        )
        os.ftruncate(lock, 0)
        os.write(lock, f"{process.pid}".encode())
        try:
            result = "failed" if process.wait(timeout=limit) else "passed"
        except subprocess.TimeoutExpired:
            result = "out of time"
        finally:
            if process.poll() is None:
                # Kernels end by themselves when it is gone. What a lesson came to stays, by which
                # the report says that it is unfinished.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return {"result": result, "seconds": round(time.monotonic() - start, 1)}


def make_environment() -> None:
    """Make an environment on top of the packages of this Python, and install the wheels there."""
    make = [sys.executable, "-m", "venv", "--system-site-packages", str(ENVIRONMENT)]
    if subprocess.call(make):  # a Python without ensurepip: then pip is the machine's
        subprocess.check_call([*make, "--without-pip", "--clear"])
    # Where this Python is that of an environment itself, venv would look only at what is below it.
    below = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    ask = [PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    purelib = Path(subprocess.check_output(ask, text=True).strip())
    lines = [f"import site; site.addsitedir({path!r})\n" for path in below]
    (purelib / "machine.pth").write_text("".join(lines))
    install = [PYTHON, "-m", "pip", "install", "--no-index", "--no-deps"]
    subprocess.check_call([*install, *map(str, sorted(WHEELS.glob("*.whl")))])


def unfit() -> str | None:
    """Say why this Python cannot do the steps, if it cannot."""
    wanted = WANTED.read_text().strip() if WANTED.exists() else ""
    here = ".".join(map(str, sys.version_info[:2]))
    if wanted not in ("", here):
        return (
            f"the wheels are for Python {wanted}, this is {here}: start the script with python"
            f"{wanted}, or make the bundle with PYTHON_VERSION={here}"
        )
    if importlib.util.find_spec("torch") is None:
        return f"{sys.executable} has no PyTorch: start the script with the Python that has it"
    return None


def log_of(folder: Path, step: Step) -> Path:
    """Say where the log of a step is."""
    return folder / "logs" / f"{step.name}.txt"


def summary(plan: list[Step], done: dict[str, dict[str, object]], folder: Path) -> str:
    """Set out how all steps went, then what they said that is worth reading first."""
    states = {step.name: done.get(step.name, {"result": "not yet", "seconds": ""}) for step in plan}
    width = max(map(len, states))
    rows = [
        f"{name:<{width}}  {about['result']:<12}  {about['seconds']:>7}"
        for name, about in states.items()
    ]
    passed = sum(about["result"] == "passed" for about in states.values())
    parts = [f"{passed} of {len(plan)} steps passed (seconds at the right)", "", *rows]
    for step in plan:
        shown = step.shown if states[step.name]["result"] == "passed" else 25
        log = log_of(folder, step)
        if step.name in done and shown and log.exists():
            last = log.read_text(errors="replace").splitlines()[-shown:]
            parts += ["", f"{step.name}:", *(f"    {line}" for line in last)]
    return "\n".join(parts) + "\n"


def end_on_signals() -> None:
    """Let SIGTERM and SIGHUP end this process as `sys.exit` does: the step under way goes first."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, frame: sys.exit(128 + received))


if __name__ == "__main__":
    end_on_signals()
    sys.exit(main())
