"""The command; see `helpers.features`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from helpers import devices, projection
from helpers.features import jobs, plan, work
from helpers.models import MODELS
from helpers.transforms.numbers import check_count


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute the features that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m helpers.features", allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, help="the folder")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", help=f"a network, on digits: {', '.join(MODELS)}, or mlp and cnn")
    what.add_argument("--job", help="package.module:function, which returns helpers.features.Job")
    parser.add_argument("--samples", type=int, help="N; with --model, needed")
    parser.add_argument("--k", type=int, default=512, help="numbers of a sample")
    parser.add_argument("--kind", choices=projection.KINDS, default="sparse")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", type=int, default=512, help="rows of a file")
    parser.add_argument("--batch", type=int, default=64, help="samples at a time")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    chosen = parser.parse_args(arguments)
    if (chosen.samples is None) == (chosen.model is not None):
        parser.error("--samples goes with --model: a job brings its own samples")
    try:
        least = {"k": 1, "seed": 0, "shard": 2, "batch": 2, "threads": 1}
        for name, number in least.items():
            check_count(name, getattr(chosen, name), least=number)
        torch.set_num_threads(chosen.threads)
        device = torch.device("cpu")
        if chosen.device == "cuda" or (chosen.device == "auto" and torch.cuda.is_available()):
            # The GPU of the number of this process on its machine.
            device = devices.resolve(f"cuda:{os.environ.get('LOCAL_RANK', 0)}")
            torch.cuda.set_device(device)
        devices.make_repeatable(chosen.seed)
        if chosen.job:
            job = jobs.load(chosen.job)
        else:
            job = jobs.on_digits(chosen.model, chosen.samples, chosen.seed, device)
        options = {name: getattr(chosen, name) for name in (*least, "kind")}
        made = plan.make(job, device=device.type, **options)
        with work.joined() as store:
            done = work.compute(job, chosen.out, made, store)
    except (ValueError, TypeError, OSError) as error:
        sys.exit(f"features: {error}")
    if work.rank() == 0:
        print(done)


if __name__ == "__main__":
    main()
