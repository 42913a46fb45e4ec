"""What breaks under `torch.func`, loudly, silently and slowly: a gallery that runs.

`ENTRIES` holds the entries; `show` runs one and writes its page, `index` writes the table of all
of them, `find` the rows that a message leads to; `run` runs one side of an entry. `changed` lists
those that do something else on this machine, `distances` says how far the silent ones are off.
`diagnose` looks for them in a model of your own.
"""

from helpers.limits.bare import Case, Classifier, bare_gradients, sequences, tokens
from helpers.limits.costs import ratios
from helpers.limits.diagnosis.findings import Diagnosis, Finding, diagnose
from helpers.limits.entry import run
from helpers.limits.gallery import ENTRIES, changed, distances, find, index, show, source

__all__ = [
    "ENTRIES",
    "Case",
    "Classifier",
    "Diagnosis",
    "Finding",
    "bare_gradients",
    "changed",
    "diagnose",
    "distances",
    "find",
    "index",
    "ratios",
    "run",
    "sequences",
    "show",
    "source",
    "tokens",
]
