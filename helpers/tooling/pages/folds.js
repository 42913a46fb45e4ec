// A button unfolds all of a page, which is printed unfolded and light; each exercise has a box "done", which
// this browser remembers; the contents follow the section that is read, which the theme marks in them.
addEventListener("DOMContentLoaded", () => {
  const article = document.querySelector(".bd-article");
  const folds = [...article.querySelectorAll("details")];
  const title = article.querySelector("h1");
  if (folds.length) {
    title.insertAdjacentHTML("afterend", '<p class="unfold"><button type="button">Unfold all</button></p>');
    const button = article.querySelector(".unfold button");
    button.addEventListener("click", () => {
      const open = folds.some((fold) => !fold.open);
      for (const fold of folds) fold.open = open;
      button.textContent = open ? "Fold all" : "Unfold all";
    });
  }
  const { dataset } = document.documentElement;
  let closed = [], theme;
  addEventListener("beforeprint", () => {
    closed = folds.filter((fold) => !fold.open);
    for (const fold of closed) fold.open = true;
    theme = dataset.theme;
    dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    for (const fold of closed) fold.open = false;
    dataset.theme = theme;
  });
  const contents = document.querySelector(".bd-sidebar-secondary");
  if (contents) new MutationObserver(() => {
    const { top, bottom } = [...contents.querySelectorAll(".nav-link.active")].at(-1)?.getBoundingClientRect() ?? {};
    if (top < 0 || bottom > innerHeight) contents.scrollTop += (top + bottom - innerHeight) / 2;
  }).observe(contents, { subtree: true, attributeFilter: ["class"] });
  for (const name of article.querySelectorAll("p > strong:first-child")) {
    if (!/^Exercise \d+$/.test(name.textContent)) continue;
    const key = `${title.firstChild.data}: ${name.textContent}`;
    name.insertAdjacentHTML("afterend", ' <label class="done"><input type="checkbox"> done</label>');
    const box = name.nextElementSibling.firstChild;
    try { box.checked = localStorage.getItem(key); } catch { continue; } // a browser that keeps nothing
    box.addEventListener("change", () =>
      box.checked ? localStorage.setItem(key, "done") : localStorage.removeItem(key));
  }
});
