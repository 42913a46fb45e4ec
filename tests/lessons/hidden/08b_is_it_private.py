# Hidden tests, as `make student HIDDEN=tests/lessons/hidden` reads them: an example for everybody.

### BEGIN HIDDEN TESTS
# check-1
def tenth_of_the_noise(number):
    chance = torch.Generator().manual_seed(number)

    def release(rows):
        noise = noise_for_one * torch.randn(700, generator=chance)
        return (clip(rows).sum(dim=0) + 0.1 * noise) / 350

    return release


def bounds(answer, make):
    # The coins have seeds of their own: those of the noise would make it follow them.
    return [answer(make(n), 700, torch.Generator().manual_seed(100 + n)) for n in range(20, 25)]


with exercises.check("Exercise 1", audited) as answer:
    highest = max(bounds(answer, lambda number: make_release("right", number, 700)[0]))
    exercises.require("right: below 1", highest < 1, measured=f"{highest:.2f}")
    lowest = min(bounds(answer, tenth_of_the_noise))
    exercises.require("a tenth of the noise: above 1", lowest > 1, measured=f"{lowest:.2f}")
### END HIDDEN TESTS
