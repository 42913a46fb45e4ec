"""Requests to a process of a study, and its answers: lines of JSON on standard input and output."""

import json
import os
import signal
import sys
from typing import Any


def serve(handle: dict[str, Any]) -> None:
    """Answer requests until there are no more.

    Args:
        handle: `{name of a request: function of its other fields}`; what it returns is the answer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that measures
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what is printed is no answer
    for line in sys.stdin:
        request = json.loads(line)
        number, name = request.pop("number"), request.pop("name")
        try:
            answer = {"answer": handle[name](**request)}
        except Exception as error:
            first_line = (str(error).strip() or "no message").splitlines()[0]
            answer = {"error": f"{type(error).__name__}: {first_line}"}
        print(json.dumps({"number": number, **answer}), file=answers, flush=True)
