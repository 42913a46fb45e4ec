"""What runs, checks and saves the notebooks. No lesson imports it."""
