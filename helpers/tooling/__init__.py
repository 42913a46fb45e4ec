"""What runs, checks, normalises and publishes the notebooks. No lesson imports it."""
