# Hidden tests, as `make grade HIDDEN=tests/hidden` reads them: an example that everybody can read.

# %% exercise-2
grads_of = random_grads(5, {"only": (7,)}, torch.float64)
owners = torch.tensor([3, 3, 3, 3, 3])  # one person
right = person_by_person(grads_of, owners, 0.5)

with exercises.check("Exercise 2", clip_by_person, grads=grads_of) as answer:
    exercises.expect("one person", answer(grads_of, owners, 0.5), right, tolerance=1e-5)

# %% exercise-3
with exercises.check("Exercise 3", steps_within) as answer:
    got = answer(1.5, 40.0, 0.5, 1e-6)
    inside = (
        privacy.epsilon(40.0, 0.5, got, 1e-6) <= 1.5 < privacy.epsilon(40.0, 0.5, got + 1, 1e-6)
    )
    exercises.require("budget 1.5: it is the most", inside, measured=f"{got}")
