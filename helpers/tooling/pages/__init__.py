"""The reading edition: how lessons become a book of pages."""
