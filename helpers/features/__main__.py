"""The command; see `helpers.features`."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from helpers import devices, projection
from helpers.features import jobs, plan, work
from helpers.features.workers import Workers
from helpers.models import MODELS


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute the features that the command line asks for."""
    chosen = _chosen(arguments)
    try:
        torch.set_num_threads(chosen.threads)
        device = _device(chosen.device)
        devices.make_repeatable(chosen.seed)
        if chosen.job:
            job = jobs.load(chosen.job)
        else:
            job = jobs.on_digits(chosen.model, chosen.samples, chosen.seed, device)
        names = ("k", "kind", "seed", "shard", "batch", "threads")
        options = {name: getattr(chosen, name) for name in names}
        made = plan.make(job, device=device.type, **options)
        with Workers.joined(device.type) as workers:
            done = work.compute(job, chosen.out, made, workers)
    except (ValueError, TypeError, OSError) as error:
        sys.exit(f"features: {error}")
    if workers.rank == 0:
        print(done)


def _chosen(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m helpers.features", allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, help="the folder")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", choices=MODELS, type=_model, help="a network, on digits")
    what.add_argument("--job", help="package.module:function, which returns helpers.features.Job")
    parser.add_argument("--samples", type=_at_least(2), help="N; with --model, needed")
    parser.add_argument("--k", type=_at_least(1), default=512, help="numbers of a sample")
    parser.add_argument("--kind", choices=projection.KINDS, default="sparse")
    parser.add_argument("--seed", type=_at_least(0), default=0)
    parser.add_argument("--shard", type=_at_least(2), default=512, help="rows of a file")
    parser.add_argument("--batch", type=_at_least(2), default=64, help="samples at a time")
    parser.add_argument("--threads", type=_at_least(1), default=1, help="of each process")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    chosen = parser.parse_args(arguments)
    if (chosen.samples is None) == (chosen.model is not None):
        parser.error("--samples goes with --model: a job brings its own samples")
    return chosen


def _model(text: str) -> str:
    """Complete the name of a model: mlp and cnn will do."""
    return next((name for name in MODELS if name.lower().endswith(text.lower())), text)


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number, at least {least}")
        return int(text)

    return number


def _device(name: str) -> torch.device:
    """Choose the device of this process: the GPU of its number on its machine, if there is one."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    device = devices.resolve(f"cuda:{os.environ.get('LOCAL_RANK', 0)}")
    torch.cuda.set_device(device)
    return device


if __name__ == "__main__":
    main()
