# %% solution-1: correct
def sensitivity_of_log(C, batches):
    moved = torch.zeros(int(batches.max()) + 1, len(C), dtype=C.dtype)
    for t in range(len(batches)):
        moved[batches[t]] += C[:, t]
    return float(moved.norm(dim=1).max())

# %% solution-1: correct
def sensitivity_of_log(C, batches):
    samples = batches.unique()
    # Which sample takes part in which step
    takes_part = (batches[:, :, None] == samples).any(dim=1).to(C)  # (n, samples)
    return (C @ takes_part).norm(dim=0).max().item()

# %% solution-1: right shape, wrong values: 12 steps of 3
# the root of the number of passes times the largest column norm
# - moved = C[:, takes_part].sum(dim=1).norm().item()
# + moved = C.norm(dim=0).max().item() * int(takes_part.sum()) ** 0.5

# %% solution-1: right shape, wrong values: 12 steps of 3
# the norms of the columns, added
# - C[:, takes_part].sum(dim=1).norm().item()
# + C[:, takes_part].norm(dim=0).sum().item()

# %% solution-1: right shape, wrong values: 12 steps of 3
def sensitivity_of_log(C, batches):  # as if the order were the same in each pass
    gap = batches.unique().numel() // batches.shape[1]
    return C.view(len(C), -1, gap).sum(dim=1).norm(dim=0).max().item()

# %% solution-1: right shape, wrong values: 12 steps of 3
# one column at a time
# - C[:, takes_part].sum(dim=1).norm().item()
# + C[:, takes_part].norm(dim=0).max().item()
