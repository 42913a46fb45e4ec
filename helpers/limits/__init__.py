"""What breaks under `torch.func`: the tools of lesson 6.

`find` looks up an error message, a warning or a few words, `index` lists all entries, and `entries`
returns them by name. `diagnose` looks for them in your own model.
"""

from helpers.limits.diagnosis import diagnose
from helpers.limits.findings import Diagnosis, Finding
from helpers.limits.lookup import entries, find, index

__all__ = ["Diagnosis", "Finding", "diagnose", "entries", "find", "index"]
