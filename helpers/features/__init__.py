"""Features of many samples, by one process or many: projected per-sample gradients, in a folder.

    python -m helpers.features --out folder --job module:function --k 512
    python -m torch.distributed.run --standalone --nproc-per-node 2 -m helpers.features ...

`function` takes no arguments and returns a `Job`. Any number of processes write the same bits:

- `plan.json`: what is computed. A run with a different plan is refused.
- `features-000000.npy` and so on: the rows of one shard each, `(rows, k)`, in NumPy's format, with
  a checksum after them, which every later run verifies.

A file gets its name only when it is complete. So the same command resumes an interrupted run.
`open_features` reads the folder.
"""

from helpers.features.job import Job
from helpers.features.shards import open_features

__all__ = ["Job", "open_features"]
