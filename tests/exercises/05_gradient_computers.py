# Answers and their verdicts, as tests/support/answers.py reads them. A wrong one breaks one demand.

# %% solution-1: correct
def numbers_needed(error, cosine):
    import math

    return math.ceil((1 + cosine**2) / error**2)

# %% solution-1: correct
def numbers_needed(error, cosine):
    k = 1
    while ((1 + cosine**2) / k) ** 0.5 > error:
        k += 1
    return k

# %% solution-1: not so yet: error 0.03, cosine 0.0: it is enough
def numbers_needed(error, cosine):
    return int((1 + cosine**2) / error**2)  # rounded down

# %% solution-1: not so yet: error 0.03, cosine 1.0: it is enough
def numbers_needed(error, cosine):
    return int(-(-1 // error**2))  # forgets the cosine

# %% solution-1: not so yet: one less is not
def numbers_needed(error, cosine):
    return int((1 + abs(cosine)) / error**2) + 1  # not its square

# %% solution-1: not so yet: it is an int
def numbers_needed(error, cosine):
    return -(-(1 + cosine**2) / error**2 // 1)

# %% solution-2: correct
class Regression:
    def get_output(self, model, weights, buffers, image, target):
        return functional_call(model, {**weights, **buffers}, image[None])[0, 0]

    def get_out_to_loss_grad(self, model, weights, buffers, batch):
        with torch.no_grad():
            f = functional_call(model, {**weights, **buffers}, batch[0])
        return batch[1].unsqueeze(1) - f

# %% solution-2: correct
class Regression:
    def get_output(self, model, weights, buffers, image, target):
        return functional_call(model, (weights, buffers), (image.unsqueeze(0),)).sum()

    def get_out_to_loss_grad(self, model, weights, buffers, batch):
        f = functional_call(model, (weights, buffers), (batch[0],)).detach()
        slope = grad(lambda f: 0.5 * ((f - batch[1][:, None]) ** 2).sum())(f)
        return -slope

# %% solution-2: right shape, wrong values: minus the derivative
# - (targets[:, None] - predictions).detach()
# + (predictions - targets[:, None]).detach()

# %% solution-2: not so yet: it is detached
# - (targets[:, None] - predictions).detach()
# + targets[:, None] - predictions

# %% solution-2: wrong shape: minus the derivative: expected
# - (targets[:, None] - predictions).detach()
# + (targets - predictions.squeeze(1)).detach()

# %% solution-2: wrong shape: the prediction: expected (), got (1, 1)
# - .squeeze()
# +

# %% solution-2: right shape, wrong values: the prediction
# - .squeeze()
# + .squeeze().sub(target).square().div(2)  # the loss, not the output

# %% solution-3: correct
def leverages(matrix):
    return q * (1 - q) * torch.einsum("ip,pr,ir->i", g, torch.linalg.inv(matrix), g)

# %% solution-3: correct
def leverages(matrix):
    half = torch.linalg.solve_triangular(torch.linalg.cholesky(matrix), g.T, upper=False)
    return (q - q.square()) * half.square().sum(dim=0)

# %% solution-3: right shape, wrong values
def leverages(matrix):
    return (g * torch.linalg.solve(matrix, g.T).T).sum(dim=1)

# %% solution-3: wrong shape
def leverages(matrix):
    return q * (1 - q) * (g @ torch.linalg.solve(matrix, g.T))

# %% solution-3: not so yet: it changed g
def leverages(matrix):
    return q * (1 - q) * g.mul_(torch.linalg.solve(matrix, g.T).T).sum(dim=1)

# %% solution-3: not so yet: that error is below a third
def leverages(matrix):
    h = q * (1 - q) * (g * torch.linalg.solve(matrix, g.T).T).sum(dim=1)
    return h.mean().expand(len(h))  # the right sum, spread evenly

# %% solution-4: correct
def cosine_scores(params):
    network.load_state_dict(params)
    computer, _ = computers(network, images_task)
    wanted = computer.compute_per_sample_grad((test_images[:targets], test_labels[:targets]))
    rows = []
    for batch in batches((train_images, train_labels), 50):
        grads = computer.compute_per_sample_grad(batch)
        pairs = (grads, wanted), (grads, grads), (wanted, wanted)
        dots, own, other = (sum(a[n].flatten(1) @ b[n].flatten(1).T for n in a) for a, b in pairs)
        rows.append(dots / own.diagonal().sqrt()[:, None] / other.diagonal().sqrt())
    return torch.cat(rows)

# %% solution-4: correct
def cosine_scores(params):
    network.load_state_dict(params)
    _, computer = computers(network, images_task)

    def flat(images, labels):
        grads = computer.compute_per_sample_grad((images, labels))
        return torch.cat([g.flatten(1) for g in grads.values()], dim=1)

    wanted = flat(test_images[:targets], test_labels[:targets])
    scores = torch.empty(len(train_images), targets, device=device)
    for at in range(0, len(train_images), 100):
        some = flat(train_images[at : at + 100], train_labels[at : at + 100])
        for column, target in enumerate(wanted):
            scores[at : at + 100, column] = F.cosine_similarity(some, target[None])
    return scores

# %% solution-4: wrong shape
def cosine_scores(params):
    return torch.zeros(targets, len(train_images))

# %% solution-4: right shape, wrong values
# no lengths
# - return F.normalize(torch.cat([g.flatten(1) for g in grads.values()], dim=1), dim=1)
# + return torch.cat([g.flatten(1) for g in grads.values()], dim=1)

# %% solution-4: right shape, wrong values
# - torch.cat([g.flatten(1) for g in grads.values()], dim=1), dim=1)
# + projection.project(grads, 512), dim=1)

# %% solution-4: right shape, wrong values
# -     network.load_state_dict(params)
# -     computer, _ = computers(network, images_task)
# +     computer, _ = computers(build(99), images_task)  # another network

# %% solution-4: not so yet: the peak is below 500 gradients
# -     train_batches = batches((train_images, train_labels), 100)
# +     train_batches = batches((train_images, train_labels), 333)

# %% solution-5: correct
def find_mislabelled(params, images, labels, count):
    losses = F.cross_entropy(functional_call(network, params, (images,)), labels, reduction="none")
    return losses.argsort(descending=True)[:count]

# %% solution-5: correct
def find_mislabelled(params, images, labels, count):
    network.load_state_dict(params)
    computer, _ = computers(network, images_task)
    norms = []
    for batch in batches((images, labels), 100):
        grads = computer.compute_per_sample_grad(batch)
        squares = sum(g.flatten(1).square().sum(dim=1) for g in grads.values())
        norms.append(squares.sqrt() * computer.compute_loss_grad(batch).squeeze(1))
    return torch.cat(norms).topk(count).indices

# %% solution-5: not so yet: 8 of 10 are found
# -     return computer.compute_loss_grad((images, labels)).squeeze(1).topk(count).indices
# +     pulls = computer.compute_loss_grad((images, labels)).squeeze(1)
# +     return pulls.topk(count, largest=False).indices  # the surest

# %% solution-5: not so yet: each sample is named once
# -     return computer.compute_loss_grad((images, labels)).squeeze(1).topk(count).indices
# +     suspects = computer.compute_loss_grad((images, labels)).squeeze(1).topk(count).indices
# +     return torch.cat([suspects[:-1], suspects[:1]])

# %% solution-5: wrong shape
# -     return computer.compute_loss_grad((images, labels)).squeeze(1).topk(count).indices
# +     return computer.compute_loss_grad((images, labels)).squeeze(1).topk(2 * count).indices
