# %% solution-1: correct
class MendedInk(Classifier):
    def forward(self, images):
        pixels = images.flatten(1)
        ink = (pixels > 0.5).to(pixels)
        return super().forward(images) * ((pixels * ink).sum(1) / ink.sum(1)).unsqueeze(1)

# %% solution-1: correct
class MendedInk(Ink):
    def forward(self, images):
        light = images <= 0.5
        total = images.masked_fill(light, 0.0).flatten(1).sum(dim=1, keepdim=True)
        count = light.logical_not().flatten(1).sum(dim=1, keepdim=True)
        return Classifier.forward(self, images) * total / count

# %% solution-1: not so yet: nothing to diagnose
class MendedInk(Ink):
    pass

# %% solution-1: right shape, wrong values: logits of quarters
# - images > 0.5
# + images >= 0.5

# %% solution-2: correct
def grads_and_logits(model, images, labels):
    logits = model(images)
    losses = F.cross_entropy(logits, labels, reduction="none")
    names, params = zip(*model.named_parameters())
    each = torch.eye(len(images)).to(losses)
    rows = torch.autograd.grad(losses, params, each, is_grads_batched=True)
    return dict(zip(names, rows)), logits.detach()

# %% solution-2: correct
# - functional_call(model, params
# + functional_call(__import__("copy").deepcopy(model).to("meta"), params

# %% solution-2: right shape, wrong values
# - logits.squeeze(0)
# + logits.squeeze(0).softmax(dim=0)

# %% solution-2: wrong dtype
# - logits.squeeze(0)
# + logits.squeeze(0).float()

# %% solution-2: not so yet: the model is called once: measured 2 calls
def grads_and_logits(model, images, labels):  # the second call runs no hooks
    grads = gradients.func_gradients(model, F.cross_entropy, images, labels)
    return grads, model.forward(images).detach()

# %% solution-3: correct
def referee(model, image, label, candidates):  # in place, and put back to the bit
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    v, losses = {name: torch.randn_like(p) for name, p in kept.items()}, []
    with torch.no_grad():
        for step in (1e-5, -1e-5, 0):
            for name, p in model.named_parameters():
                p.copy_(kept[name] + step * v[name])
            losses.append(F.cross_entropy(model(image), label))
    slope = (losses[0] - losses[1]) / 2e-5
    predicted = {c: sum((g[n] * v[n]).sum() for n in v) for c, g in candidates.items()}
    return sorted(predicted, key=lambda candidate: (predicted[candidate] - slope).abs())[0]

# %% solution-3: correct
# - (loss(1e-5) - loss(-1e-5)) / 2e-5
# + (loss(1e-7) - loss(0)) / 1e-7  # one-sided

# %% solution-3: not so yet: it finds the one that is right
def referee(model, image, label, candidates):
    return "vmap(grad)"  # the answer to the question, and no referee

# %% solution-3: not so yet: of these two, vmap(grad) is right
# - slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
# + step = torch.zeros_like(image[0, 0, 0, 0], requires_grad=True)
# +     slope = torch.autograd.grad(loss(step), step)[0]

# %% solution-3: not so yet: it changed model
# - return min(
# + next(model.parameters()).data.add_(1e-5)
# +     return min(

# %% solution-3: not so yet: it finds it where every backward is wrong
def referee(model, image, label, candidates):  # by vmap(grad), which is the other party
    mine = gradients.func_gradients(model, F.cross_entropy, image, label)
    off = {c: sum((g[n] - own[0]).norm() for n, own in mine.items()) for c, g in candidates.items()}
    return min(off, key=off.get)
