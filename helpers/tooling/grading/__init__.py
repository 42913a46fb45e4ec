"""The parts of `make grade`: submissions, the lesson that runs once, confined answers, pages."""
