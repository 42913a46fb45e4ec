# Hidden tests, as `make grade HIDDEN=tests/hidden` reads them: an example that everybody can read.

# %% exercise-1
narrow = nn.Sequential(nn.Conv2d(1, 2, 5, stride=5), nn.Flatten(), nn.Linear(50, 10))
narrow.to(where)[0].weight.requires_grad_(False)  # the first of the four, its bias is trained
three_images, three_labels = data.load_batch(dataset, 3, where)
case = legacy_gradients(narrow, three_images, three_labels)
right = gradients.loop_gradients(narrow, F.cross_entropy, three_images, three_labels)

with exercises.check("Exercise 1", named_gradients, model=narrow) as answer:
    exercises.expect("gradients of a third model", answer(*case), right)

# %% exercise-3, without: make_functional_with_buffers make_functional legacy_disagreement_gradient
three = [copy.deepcopy(model).to(where, torch.float64) for _ in range(3)]
for number, one in enumerate(three):
    for parameter in one.parameters():
        parameter.data *= 1 + 0.2 * number
right = legacy_disagreement_gradient(three, few_images[:2])

with exercises.check("Exercise 3", disagreement_gradient, x=few_images) as answer:
    exercises.expect("three models", answer(three, few_images[:2]), right, tolerance=1e-4)
