# %% solution-1: correct
def label_saliency(model, images, labels):
    images = images.clone().requires_grad_()
    return torch.autograd.grad(model(images).gather(1, labels[:, None]).sum(), images)[0]

# %% solution-1: correct
def label_saliency(model, images, labels):
    rows = []
    for image, label in zip(images, labels, strict=True):
        image = image.clone().requires_grad_()
        rows.append(torch.autograd.grad(model(image[None])[0, label], image)[0])
    return torch.stack(rows)

# %% solution-1: not so yet: it changed cases[0][1]
# - images = images.clone().requires_grad_()
# + images.requires_grad_()

# %% solution-1: right shape, wrong values
def label_saliency(model, images, labels):
    images = images.clone().requires_grad_()
    return torch.autograd.grad(model(images).sum(), images)[0]

# %% solution-1: wrong shape
# -     return torch.autograd.grad(model(images).gather(1, labels[:, None]).sum(), images)[0]
# +     return torch.autograd.grad(model(images)[:, labels].sum(), images)[0].flatten(1)

# %% solution-1: not so yet: less arithmetic than five forward passes
# - return outputs.gather(0, label.unsqueeze(0))[0]
# + return outputs
# - vmap(grad(label_output))(images, labels)
# + vmap(jacrev(label_output))(images, labels)[torch.arange(len(images)), labels]

# %% solution-2: correct
def some_jacobians(model, names, inputs):  # forward mode
    params = {name: p.detach() for name, p in model.named_parameters()}

    def compute_outputs(chosen, x):
        return functional_call(model, {**params, **chosen}, (x[None],))[0]

    compute = vmap(jacfwd(compute_outputs), in_dims=(None, 0))
    parts = compute({name: params[name] for name in names}, inputs)
    return torch.cat([part.flatten(2) for part in parts.values()], dim=2)

# %% solution-2: correct
def some_jacobians(model, names, inputs):  # two loops
    chosen = [model.get_parameter(name) for name in names]
    samples = []
    for x in inputs:
        outputs = model(x[None])[0]
        rows = [torch.autograd.grad(output, chosen, retain_graph=True) for output in outputs]
        samples.append(torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]))
    return torch.stack(samples)

# %% solution-2: not so yet: less arithmetic than six forward passes
# - chosen = {name: params[name] for name in names}
# + chosen = params

# %% solution-2: not so yet: they are detached
# - params = {name: p.detach() for name, p in model.named_parameters()}
# + params = dict(model.named_parameters())

# %% solution-2: right shape, wrong values
# the order of the model
# - for name in names], dim=2)
# + for name in params if name in names], dim=2)

# %% solution-2: wrong shape
# - .flatten(2) for name in names], dim=2)
# + .flatten(1) for name in names], dim=1)

# %% solution-2: not so yet: it changed cases[0][0]
# - chosen = {name: params[name] for name in names}
# + chosen = {name: params[name] for name in names}
# +     model.fc1.requires_grad_(False)

# %% solution-3: correct
def fit(curve, readings, theta):
    step = torch.ones_like(theta)
    while step.norm() > 1e-12:
        J = jacrev(curve)(theta)
        step = torch.linalg.lstsq(J, readings - curve(theta)).solution
        theta = theta + step
    J, r = jacrev(curve)(theta), readings - curve(theta)
    return theta, (torch.linalg.inv(J.T @ J) * (r @ r) / (len(r) - 3)).diagonal().sqrt()

# %% solution-3: correct
# - range(20)
# + range(30)
# - torch.linalg.solve(J.T @ J, J.T @ r)
# + torch.linalg.pinv(J) @ r

# %% solution-3: not so yet: the squared error has no slope there
# - range(20)
# + range(1)

# %% solution-3: right shape, wrong values: standard errors
# - (len(readings) - 3)
# + len(readings)

# %% solution-3: right shape, wrong values: standard errors
# - variance * torch.linalg.inv(J.T @ J).diagonal()
# + variance / (J * J).sum(dim=0)

# %% solution-3: not so yet: it changed cases[0][2]
# - theta = theta +
# + theta +=

# %% solution-3: your answer raised
# - return theta, (variance * torch.linalg.inv(J.T @ J).diagonal()).sqrt()
# + return theta
