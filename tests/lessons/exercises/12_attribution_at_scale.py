# %% solution-1: correct
def project_layer(x, d, A, C):
    return torch.einsum("bto,mo,bti,ni->bmn", d, A, x, C)

# %% solution-1: correct
def project_layer(x, d, A, C):
    total = 0
    for t in range(x.shape[1]):
        total = total + (d[:, t] @ A.T)[:, :, None] * (x[:, t] @ C.T)[:, None]
    return total

# %% solution-1: right shape, wrong values: 5 texts of 7 words
def project_layer(x, d, A, C):  # a product of sums
    return (d.sum(dim=1) @ A.T)[:, :, None] * (x.sum(dim=1) @ C.T)[:, None]

# %% solution-2: correct
def ekfac_solve(a, d, ridge, grads):
    U_A = torch.linalg.eigh(a.T @ a).eigenvectors
    U_G = torch.linalg.eigh(sum(each.T @ each for each in d)).eigenvectors
    eigenvalues = sum((each @ U_G).square().T @ (a @ U_A).square() for each in d)
    turned = torch.stack([U_G.T @ g @ U_A / (eigenvalues + ridge) for g in grads])
    return torch.stack([U_G @ g @ U_A.T for g in turned])

# %% solution-2: correct
def ekfac_solve(a, d, ridge, grads):  # by the basis of the block
    U_A = torch.linalg.eigh(a.T @ a)[1]
    U_G = torch.linalg.eigh(torch.einsum("yno,ynp->op", d, d))[1]
    eigenvalues = torch.einsum("yno,ni->oi", (d @ U_G) ** 2, (a @ U_A) ** 2).flatten()
    basis = torch.kron(U_G.contiguous(), U_A.contiguous())
    return (grads.flatten(1) @ basis / (eigenvalues + ridge) @ basis.T).view_as(grads)

# %% solution-2: right shape, wrong values: 40 samples
# K-FAC: products of the two matrices' eigenvalues
# - eigenvalues = (d @ U_G).square().sum(dim=0).T @ (a @ U_A).square()
# + eigenvalues = (d @ U_G).square().sum(dim=(0, 1))[:, None] * (a @ U_A).square().sum(dim=0)

# %% solution-2: right shape, wrong values: 40 samples
# - (eigenvalues + ridge)
# + eigenvalues
