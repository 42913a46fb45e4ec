"""On a machine with a GPU and no network: run everything there, and leave one folder of results.

`python measure.py` beside the folders `collection` and `wheels` of a bundle. It needs Python 3.11
or newer with PyTorch, and nothing else: it makes an environment on top of what the machine has. The
most telling steps come first, each with a time limit. A step that is done is not done again, so a
run that was stopped goes on where it was. The results are in `results/`; what is in
`results/build/` can be copied into the folder `build/` of a clone, where `make report` shows it
beside other runs.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).absolute().parent
COLLECTION, WHEELS = HERE / "collection", HERE / "wheels"
ENVIRONMENT, RESULTS = HERE / "environment", HERE / "results"
PYTHON = str(ENVIRONMENT / "bin" / "python")
WHOLE = 25 * 60
"""Seconds that all steps together may take."""
FACTS = """
import platform, torch
print("Python", platform.python_version(), "torch", torch.__version__, "CUDA", torch.version.cuda)
for index in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(index))
"""


@dataclass(frozen=True)
class Step:
    """One thing to do.

    Attributes:
        name: Of its log.
        limit: Seconds that it may take.
        command: What is run in the folder of the collection.
        needed: Whether nothing else can be done without it.
    """

    name: str
    limit: int
    command: list[str]
    needed: bool = False


def steps(device: str) -> list[Step]:
    """List what is done on a device, the most telling first."""
    make = f"{sys.executable} -m venv --system-site-packages {ENVIRONMENT}"
    install = f"{PYTHON} -m pip install --no-index --no-deps {WHEELS}/*.whl"
    pytest = [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "--color=no"]
    return [
        Step("environment", 300, ["sh", "-c", f"{make} && {install}"], needed=True),
        Step("facts", 60, [PYTHON, "-c", FACTS], needed=True),
        Step("lessons", 600, [PYTHON, "-m", "helpers.tooling.run", "--device", device]),
        Step("bench", 420, [PYTHON, "-m", "helpers.tooling.bench", "--device", device]),
        Step("saved-outputs", 420, [*pytest, "--nbval-lax", "notebooks"]),
        Step("helpers", 300, [*pytest, "tests/device_cases.py"]),
        Step("report", 60, [PYTHON, "-m", "helpers.tooling.report"]),
    ]


def main() -> int:
    """Do the steps that are not done.

    Returns:
        The exit status: 0 if all of them went well, else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, mps or cpu")
    device = parser.parse_args().device
    (RESULTS / "logs").mkdir(parents=True, exist_ok=True)
    (RESULTS / "build").mkdir(exist_ok=True)
    build = COLLECTION / "build"
    if not build.exists():
        build.symlink_to(RESULTS / "build")
    state = RESULTS / "steps.json"
    done = json.loads(state.read_text()) if state.exists() else {}
    end = time.monotonic() + WHOLE
    for step in steps(device):
        if done.get(step.name, {}).get("result") != "passed":
            left = end - time.monotonic()
            done[step.name] = run(step, device, min(step.limit, left))
            state.write_text(json.dumps(done, indent=1))
            (RESULTS / "summary.txt").write_text(summary(done))
        print(f"{step.name:<14} {done[step.name]['result']}", flush=True)
        if step.needed and done[step.name]["result"] != "passed":
            print((RESULTS / "logs" / f"{step.name}.txt").read_text()[-2000:], file=sys.stderr)
            break
    print(f"The results are in {RESULTS}.")
    return int(any(each["result"] != "passed" for each in done.values()))


def run(step: Step, device: str, limit: float) -> dict[str, object]:
    """Do one step, with what it prints in its log.

    Returns:
        Its `result` (`"passed"`, `"failed"`, `"out of time"` or `"no time left"`) and `seconds`.
    """
    if limit <= 0:
        return {"result": "no time left", "seconds": 0.0}
    environment = {**os.environ, "TEST_DEVICE": device, "OMP_WAIT_POLICY": "passive"}
    start = time.monotonic()
    with open(RESULTS / "logs" / f"{step.name}.txt", "w") as log:
        process = subprocess.Popen(
            step.command,
            cwd=COLLECTION,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            result = "failed" if process.wait(timeout=limit) else "passed"
        except subprocess.TimeoutExpired:
            result = "out of time"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its kernels, too
                process.wait()
    return {"result": result, "seconds": round(time.monotonic() - start, 1)}


def summary(done: dict[str, dict[str, object]]) -> str:
    """Set out how the steps went, with the last lines of what each of them printed."""
    parts = []
    for name, about in done.items():
        log = RESULTS / "logs" / f"{name}.txt"
        last = log.read_text(errors="replace").splitlines()[-12:] if log.exists() else []
        parts.append(f"{name}: {about['result']}, {about['seconds']} s")
        parts += [f"    {line}" for line in last]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
