# %% solution-1: correct
def empirical_step(gradients, damping):  # by the singular values of the gradients
    left, values, right = torch.linalg.svd(gradients, full_matrices=False)
    along = left.T @ torch.ones_like(left[:, 0])
    return right.T @ (values * along / (values**2 + len(gradients) * damping))

# %% solution-1: correct
def empirical_step(gradients, damping):  # the formula of Woodbury, from the mean
    N = len(gradients)
    mean = gradients.mean(dim=0)
    inner = gradients @ gradients.T + N * damping * torch.eye(N).to(gradients)
    within = gradients.T @ torch.linalg.solve(inner, gradients @ mean)
    return (mean - within) / damping

# %% solution-1: not so yet: the peak is below 4 copies
def empirical_step(gradients, damping):
    matrix = gradients.T @ gradients / len(gradients)
    matrix.diagonal().add_(damping)
    return torch.linalg.solve(matrix, gradients.mean(dim=0))

# %% solution-1: right shape, wrong values: step with damping 0.1
# - len(gradients) * damping
# + damping

# %% solution-1: right shape, wrong values: step with damping 0.1
# - return gradients.T
# + return gradients.T / len(gradients)

# %% solution-1: right shape, wrong values: step with damping 0.1
# the covariance, which leaves the mean out
# - inner = gradients @ gradients.T
# + centered = gradients - gradients.mean(dim=0)
# +     inner = centered @ centered.T

# %% solution-1: not so yet: it changed cases
# - inner = gradients @ gradients.T  # (N, N)
# + gradients += damping
# +     inner = gradients @ gradients.T
