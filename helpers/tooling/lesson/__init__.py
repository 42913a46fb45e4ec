"""What targets share about a lesson: its file, form, copies, execution and parameters."""
