"""Small modules that the lessons import.

Nothing in here imports `helpers.tooling`, so a lesson and the modules it names are complete
without the machinery that runs and checks notebooks.
"""
