"""What breaks under `torch.func`, loudly, silently or slowly: the two tools of lesson 6.

`find` says what an error message, a warning or a word leads to, `index` lists all entries, and
`entries` gives them by name. `diagnose` looks for them in a model of your own.
"""

from helpers.limits.diagnosis import diagnose
from helpers.limits.findings import Diagnosis, Finding
from helpers.limits.lookup import entries, find, index

__all__ = ["Diagnosis", "Finding", "diagnose", "entries", "find", "index"]
