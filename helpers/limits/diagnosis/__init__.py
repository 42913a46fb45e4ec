"""`diagnose`: which entries of lesson 6 apply to a model of your own."""
