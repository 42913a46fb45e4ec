# Wrong answers: the id of the solution that each stands for, and the verdict it gets.

# %% solution-1: right shape, wrong values
class Regression:
    def get_output(self, model, weights, buffers, image, target):
        return functional_call(model, (weights, buffers), (image.unsqueeze(0),)).squeeze()

    def get_out_to_loss_grad(self, model, weights, buffers, batch):
        images, targets = batch
        predictions = functional_call(model, (weights, buffers), (images,))
        return (predictions - targets[:, None]).detach()


# %% solution-2: right shape, wrong values
def leverages(matrix):
    return (g * torch.linalg.solve(matrix, g.T).T).sum(dim=1)


# %% solution-2: wrong shape
def leverages(matrix):
    return q * (1 - q) * (g @ torch.linalg.solve(matrix, g.T))


# %% solution-3: wrong shape
def cosine_scores(params):
    return torch.zeros(targets, len(train_images))


# %% solution-3: right shape, wrong values
def cosine_scores(params):
    return torch.zeros(len(train_images), targets).to(device)


# %% solution-1: not so yet: it is detached
class Regression:
    def get_output(self, model, weights, buffers, image, target):
        return functional_call(model, (weights, buffers), (image.unsqueeze(0),)).squeeze()

    def get_out_to_loss_grad(self, model, weights, buffers, batch):
        images, targets = batch
        predictions = functional_call(model, (weights, buffers), (images,))
        return targets[:, None] - predictions


# %% solution-1: wrong shape: minus the derivative, of a batch: expected (64, 1), got (64,)
class Regression:
    def get_output(self, model, weights, buffers, image, target):
        return functional_call(model, (weights, buffers), (image.unsqueeze(0),)).squeeze()

    def get_out_to_loss_grad(self, model, weights, buffers, batch):
        images, targets = batch
        predictions = functional_call(model, (weights, buffers), (images,))
        return (targets - predictions.squeeze(1)).detach()


# %% solution-1: your answer raised
class Regression:
    def get_output(self, model, weights, buffers, image, target):
        pass

    def get_out_to_loss_grad(self, model, weights, buffers, batch):
        images, targets = batch
        predictions = functional_call(model, (weights, buffers), (images,))
        return (targets[:, None] - predictions).detach()


# %% solution-2: not so yet: it changed g
def leverages(matrix):
    return q * (1 - q) * g.mul_(torch.linalg.solve(matrix, g.T).T).sum(dim=1)


# %% solution-3: right shape, wrong values
def cosine_scores(params):
    network.load_state_dict(params)
    computer, _ = computers(network, images_task)

    def directions(batch):
        grads = computer.compute_per_sample_grad(batch)
        return F.normalize(torch.cat([g.flatten(1) for g in grads.values()], dim=1), dim=1)

    one_target = directions((test_images[:1], test_labels[:1]))
    train_batches = batches((train_images, train_labels), 100)
    one_column = torch.cat([directions(batch) @ one_target.T for batch in train_batches])
    return one_column.repeat(1, targets)


# %% solution-3: not so yet: the peak is below 500 gradients
def cosine_scores(params):
    network.load_state_dict(params)
    computer, _ = computers(network, images_task)

    def directions(batch):
        grads = computer.compute_per_sample_grad(batch)
        return F.normalize(torch.cat([g.flatten(1) for g in grads.values()], dim=1), dim=1)

    target_directions = directions((test_images[:targets], test_labels[:targets]))
    train_batches = batches((train_images, train_labels), 333)
    return torch.cat([directions(batch) @ target_directions.T for batch in train_batches])
