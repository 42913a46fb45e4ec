# %% solution-1: correct
def variances(own, across, inside, delta):
    inverse = torch.linalg.inv(inside + delta * torch.eye(len(inside)).to(inside))
    return (own - torch.einsum("nm,mk,nk->n", across, inverse, across)) / delta

# %% solution-1: correct
# - (across * torch.linalg.solve(matrix, across.T).T).sum(dim=1)
# + torch.linalg.solve_triangular(
# +         torch.linalg.cholesky(matrix), across.T, upper=False
# +     ).square().sum(dim=0)

# %% solution-1: right shape, wrong values: 60 variances
# - torch.linalg.solve(matrix, across.T)
# + torch.linalg.solve(matrix - delta * torch.eye(len(inside)).to(inside) / 2, across.T)

# %% solution-1: right shape, wrong values: 60 variances
# - return (own - explained) / delta
# + return (own - explained) * delta
