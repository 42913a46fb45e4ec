"""What runs in a process of a study: requests and answers are lines of JSON. Without torch."""

import json
import os
import sys
import time
from typing import Any

from helpers import memory


class Worker:
    """Runs one candidate, `run`; subclasses say how it is built and timed."""

    run: Any = None

    def used(self) -> tuple[int | None, int | None]:
        """Return the bytes of memory that were in use at most, and those that are held now."""
        return memory.high_water(), memory.resident()

    def weigh(self) -> dict[str, Any]:
        """Run twice: how long the first takes, the memory at most and after, above that before."""
        before = self.used()
        start = time.perf_counter()
        self.run()
        self.used()  # on a GPU, waits until it is done
        first = time.perf_counter() - start
        self.run()
        peak, held = (
            None if was is None else now - was for was, now in zip(before, self.used(), strict=True)
        )
        return {"first": first, "peak": peak, "held": held}

    def faults(self) -> int | None:
        """Run once more, and count its page faults; the first runs of a process make others."""
        before = memory.page_faults()
        self.run()
        return None if before is None else memory.page_faults() - before

    def serve(self) -> None:
        """Answer requests, each the name of a method with its arguments, until there are none."""
        answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what is printed is no answer
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = {"answer": getattr(self, request.pop("name"))(**request)}
            except Exception as error:
                first_line = (str(error).strip() or "no message").splitlines()[0]
                answer = {"error": f"{type(error).__name__}: {first_line}"}
            print(json.dumps(answer), file=answers, flush=True)
