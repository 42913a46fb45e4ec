"""What the lessons import: small modules, each one noun.

Nothing in here imports `helpers.tooling`, so a lesson and the modules it names are complete
without the machinery that runs and checks notebooks.
"""
