"""Features of many samples, by as many processes as there are: projected per-sample gradients.

    python -m helpers.features --out build/features --model mlp --samples 1797 --k 512
    python -m torch.distributed.run --standalone --nproc-per-node 2 -m helpers.features ...

One process or many, on one machine or more, give the same folder, bit for bit:

- `plan.json`: what was computed. A run of anything else is refused there.
- `features-000000.npy` and so on: the rows of one shard each, `(rows, k)`, for NumPy alone. Behind
  them is a checksum, which a run that goes on compares.
- `kernel.npy`: the product of all features with themselves, `(k, k)`, float64.

A file has its name only when it is whole. So whatever ends a run, the same command goes on from
there. `open_features` reads the folder as one array, a part at a time.

The job of a user's own is a function without arguments that returns a `Job`:
`--job package.module:function`.
"""

from helpers.features.jobs import Job
from helpers.features.shards import Features, open_features

__all__ = ["Features", "Job", "open_features"]
