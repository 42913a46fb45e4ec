"""The reading edition: lessons as pages, with an index."""
