"""Run lessons as on other CPUs: do they pass, and do right and wrong answers keep their verdicts?

torch, oneDNN and MKL choose their kernels by the CPU and the number of threads. Each adds in an
order of its own, so results differ by rounding. A lesson that compares what rounding can change by
more (which of two nearly equal values a max-pooling picks, say) passes on one machine and fails on
another. So this runs lessons, and the answers in tests/lessons/exercises behind them, with the
kernels of older CPUs, on one thread and two, and with several seeds; at the saved seed, 0, it also
compares the saved outputs. Run it with the environment's Python from anywhere:

    .venv/bin/python .ci/any_cpu.py 01 03 --seeds 10 --params dataset=random

It prints a table, and writes what pytest says of each run that failed into build/any-cpu/.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "build" / "any-cpu"
# The environment variables by which torch, oneDNN and MKL take the kernels of an older CPU.
SETTINGS = {
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    },
}
"""From the oldest to the newest."""
FIXED = {
    "CUDA_VISIBLE_DEVICES": "",
    "TQDM_DISABLE": "1",
    # As in the Makefile: waiting threads sleep, and freed memory is kept.
    "OMP_WAIT_POLICY": "passive",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "1099511627776",
}


def available() -> list[str]:
    """List the capabilities that this CPU has; an ARM CPU has the first alone."""
    question = "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"
    answer = subprocess.run(
        [sys.executable, "-c", question], check=True, capture_output=True, encoding="utf-8"
    )
    newest = answer.stdout.strip()
    names = list(SETTINGS)
    if newest not in names:
        return names[:1]
    return names[: names.index(newest) + 1]


def run(lesson: str, seed: int, params: list[str], environment: dict[str, str]) -> tuple[bool, str]:
    """Run one lesson with its answers: whether it passed, and what pytest said."""
    assignments = list(params)
    if seed != 0:  # a parameter that is given means that saved outputs are not compared
        assignments.append(f"seed={seed}")
    steps = [
        ["-m", "tests.lessons.tried", lesson, *assignments],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "build/tried"],
    ]
    said = ""
    for step in steps:
        done = subprocess.run(
            [sys.executable, *step],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        said += done.stdout
        if done.returncode != 0:
            return False, said
    return True, said


def main() -> int:
    """Run the command line: 0, or 1 if a lesson failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lessons", nargs="+", help="numbers, for example 01 03")
    parser.add_argument("--seeds", type=int, default=1, help="how many: 0, the saved one, 1, ...")
    parser.add_argument("--capabilities", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--params", nargs="*", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()

    REPORTS.mkdir(parents=True, exist_ok=True)
    here = available()
    for capability in options.capabilities:
        if capability not in here:
            print(f"{capability}: skipped, this CPU lacks it")
    print("lesson  capability  threads  seed  result  seconds")
    failed = 0
    for lesson in options.lessons:
        for capability in options.capabilities:
            if capability not in here:
                continue
            for threads in options.threads:
                environment = os.environ | FIXED | SETTINGS[capability]
                environment["OMP_NUM_THREADS"] = str(threads)
                for seed in range(options.seeds):
                    start = time.perf_counter()
                    passed, said = run(lesson, seed, options.params, environment)
                    seconds = time.perf_counter() - start
                    result = "passed" if passed else "FAILED"
                    row = f"{lesson:6}  {capability:10}  {threads:7}  {seed:4}  {result}"
                    print(f"{row}  {seconds:7.0f}", flush=True)
                    if not passed:
                        failed += 1
                        report = REPORTS / f"{lesson}-{capability}-{threads}-{seed}.txt"
                        report.write_text(said, "utf-8")
                        print(f"        see {report}", flush=True)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
