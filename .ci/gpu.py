"""All that a machine with a GPU should tell, in at most twelve minutes: `make gpu`.

`python .ci/gpu.py --device cuda --to build/gpu` needs the packages of both requirement lists and
no network. Each part has its own time limit; one that fails, or runs out of time, does not stop the
rest. The folder then holds `gpu.json`, `table.txt` and the log of each part. Parts that measure
times run first, one after the other; those that only compare run side by side.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers import devices  # noqa: E402

PYTEST = [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"]


@dataclass
class Part:
    """A command with a time limit; `alone` if nothing else may run beside it."""

    name: str
    command: list[str]
    limit: int  # seconds
    alone: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def parts(device: str, small: bool, workers: int) -> list[Part]:
    """List the parts, most telling first."""
    measure = [sys.executable, ".ci/gpu_measure.py"]
    options = ["--device", device]
    if small:
        options.append("--small")
    side_by_side = ["--numprocesses", str(workers), "--dist", "loadfile"]
    found = [
        Part("waiting", [*measure, "waiting", *options], 60, alone=True),
        Part("tf32", [*measure, "tf32", *options], 60, alone=True),
        Part("models", [*measure, "models", *options], 240, alone=True),
        Part("probes", [*measure, "probes", *options], 120),
        Part(
            "device cases",
            [*PYTEST, *side_by_side[:2], "tests/support/device_cases.py"],
            240,
            environment={"TEST_DEVICE": device},
        ),
        # Compared cells, and exercises with right and wrong answers, on the best device there is.
        Part("compared cells", [*PYTEST, "--nbval-lax", *side_by_side, "build/tried"], 300),
    ]
    for lesson in sorted(ROOT.glob("notebooks/[0-9]*.ipynb")):
        run = [sys.executable, "-m", "helpers.tooling.run", lesson.stem, "--device", device]
        found.append(Part(f"lesson {lesson.stem}", run, 300))
    bench = [sys.executable, "-m", "helpers.tooling.bench", "--device", device]
    found.append(Part("bench", bench, 300, alone=True))
    return found


def run(part: Part, folder: Path, end: float) -> dict[str, object]:
    """Run a part, with what it prints in a log; return how it went."""
    limit = min(part.limit, end - time.monotonic())
    if limit <= 0:
        return {"result": "no time left", "seconds": 0}
    log = folder / f"{part.name.replace(' ', '-')}.log"
    start = time.monotonic()
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(
            part.command,
            cwd=ROOT,
            env={**os.environ, "TQDM_DISABLE": "1", **part.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its children end with it
        )
        try:
            result = "failed" if process.wait(timeout=limit) else "passed"
        except subprocess.TimeoutExpired:
            result = "out of time"
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    about = {"result": result, "seconds": round(time.monotonic() - start, 1)}
    lines = log.read_text("utf-8", errors="replace").strip().splitlines() or [""]
    if lines[-1].startswith("{"):
        about["measured"] = json.loads(lines[-1])
    else:
        about["last line"] = lines[-1]
    if result != "passed":
        failures = [line[:300] for line in lines if re.match(r"FAILED|ERROR|E  ", line)]
        about["failures"] = failures[:40]
    print(f"{part.name}: {result}, {about['seconds']} s: {about.get('last line', '')}", flush=True)
    return about


def main() -> int:
    """Run the parts, and write what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--to", type=Path, default=Path("build/gpu"))
    parser.add_argument("--small", action="store_true", help="small sizes, to rehearse on a CPU")
    parser.add_argument("--seconds", type=int, default=720, help="for all parts together")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--only", nargs="*", help="parts whose names begin like one of these")
    options = parser.parse_args()
    device = str(devices.resolve(options.device))
    end = time.monotonic() + options.seconds
    options.to.mkdir(parents=True, exist_ok=True)
    chosen = []
    for part in parts(device, options.small, options.workers):
        if not options.only or part.name.startswith(tuple(options.only)):
            chosen.append(part)
    done: dict[str, dict[str, object]] = {}

    def finish(part: Part) -> None:
        try:
            done[part.name] = run(part, options.to, end)
        except Exception as error:
            done[part.name] = {"result": f"failed: {type(error).__name__}: {error}", "seconds": 0}
        (options.to / "gpu.json").write_text(json.dumps(done, indent=1) + "\n", "utf-8")

    for part in chosen:
        if part.alone:
            finish(part)
    together = [part for part in chosen if not part.alone]
    if any(part.name == "compared cells" for part in together):
        subprocess.run([sys.executable, "-m", "tests.lessons.tried"], cwd=ROOT)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(finish, together))

    rows = []
    for part in chosen:
        about = done[part.name]
        rows.append(f"{part.name:28} {about['result']:12} {about['seconds']:>7} s")
    table = "\n".join(rows)
    (options.to / "table.txt").write_text(f"{table}\n", "utf-8")
    print(table)
    return int(any(about["result"] != "passed" for about in done.values()))


if __name__ == "__main__":
    sys.exit(main())
