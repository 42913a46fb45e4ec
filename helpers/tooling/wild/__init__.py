"""The contract of `helpers.gradients`, held against models of well-known libraries."""
