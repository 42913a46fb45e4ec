# %% solution-1: correct
def ntk_weights(blocks):
    traces = torch.tensor([torch.einsum("np,np->", J, J) for J in blocks])
    return traces.sum() / traces

# %% solution-1: correct
def ntk_weights(blocks):
    norms = [torch.linalg.matrix_norm(J) ** 2 for J in blocks]
    return torch.stack([sum(norms) / norm for norm in norms])

# %% solution-1: right shape, wrong values
def ntk_weights(blocks):  # norms, not squared
    traces = torch.stack([J.norm() for J in blocks])
    return traces.sum() / traces

# %% solution-1: right shape, wrong values
def ntk_weights(blocks):  # means over the points
    traces = torch.stack([J.square().sum(1).mean() for J in blocks])
    return traces.sum() / traces

