"""What a lesson must be: checks of the file, and the comparison of its saved outputs."""
