"""The command; see `helpers.features`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from helpers import devices, projection
from helpers.features import job, work
from helpers.numbers import check_count

# The smallest value of each number.
LEAST = {"k": 1, "seed": 0, "shard": 2, "batch": 2, "threads": 1}


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute the features that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m helpers.features", allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, help="the folder")
    parser.add_argument("--job", required=True, help="module:function, which returns a Job")
    parser.add_argument("--k", type=int, default=512, help="size of a projected gradient")
    parser.add_argument("--kind", choices=projection.KINDS, default="sparse")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", type=int, default=512, help="rows per file")
    parser.add_argument("--batch", type=int, default=64, help="samples at a time")
    parser.add_argument("--threads", type=int, default=1, help="per process")
    chosen = parser.parse_args(arguments)
    try:
        options = {}
        for name, least in LEAST.items():
            options[name] = getattr(chosen, name)
            check_count(name, options[name], least)
        options["kind"] = chosen.kind
        torch.set_num_threads(chosen.threads)
        # Under torchrun, each process of a machine has a GPU of its own, if there are so many:
        # `"cuda"` is that one.
        if torch.accelerator.is_available():
            rank = int(os.environ.get("LOCAL_RANK", 0))
            torch.accelerator.set_device_index(rank % torch.accelerator.device_count())
        devices.make_repeatable(chosen.seed)
        loaded = job.load(chosen.job)
        plan = job.make_plan(loaded, device=loaded.computer.device.type, **options)
        with work.joined() as store:
            work.compute(loaded, chosen.out, plan, store)
    except (ValueError, TypeError, OSError) as error:
        sys.exit(f"features: {error}")


if __name__ == "__main__":
    main()
