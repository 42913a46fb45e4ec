// A button unfolds all of a page, which is printed unfolded and light; each exercise has a box "done", which
// this browser remembers; the contents follow the section that is read; a field above a long list of entries keeps
// those that hold all words written there, or a message written there as it was printed, as `limits.find` does.
const joined = (text) => text.replace(/\s/g, "");
const fragments = (code) => code.textContent.split(": ...")[1]?.split("...").filter(joined) ?? [];
const holds = (entry, said) =>
  said.toLowerCase().split(/\s+/).every((word) => entry.textContent.toLowerCase().includes(word)) ||
  [...entry.querySelectorAll("code")].map(fragments).some((parts) =>
    parts.length && parts.every((part) => joined(said).includes(joined(part))));

addEventListener("DOMContentLoaded", () => {
  const article = document.querySelector(".bd-article");
  const folds = [...article.querySelectorAll("details")];
  const title = article.querySelector("h1");
  if (folds.length) {
    title.insertAdjacentHTML("afterend", `<p><em>This page shows saved results. Where the text says “run”, run the
      notebook.</em> <button class="unfold btn btn-sm btn-outline-primary d-print-none" type="button">Unfold all</button></p>`);
    const button = article.querySelector(".unfold");
    button.addEventListener("click", () => {
      const open = folds.some((fold) => !fold.open);
      for (const fold of folds) fold.open = open;
      button.textContent = open ? "Fold all" : "Unfold all";
    });
  }
  for (const code of article.querySelectorAll("code .pre")) // a long name breaks behind `_`, `.` or `:`
    code.innerHTML = code.innerHTML.replace(/(?<=[_.:])(?=[^\W_])/g, "<wbr>");
  const { dataset } = document.documentElement;
  addEventListener("beforeprint", () => {
    const { theme } = dataset;
    const closed = folds.filter((fold) => !fold.open);
    for (const fold of closed) fold.open = true;
    dataset.theme = "light";
    addEventListener("afterprint", () => {
      for (const fold of closed) fold.open = false;
      dataset.theme = theme;
    }, { once: true });
  });
  const contents = document.querySelector(".bd-sidebar-secondary");
  if (contents) new MutationObserver(() =>
    [...contents.querySelectorAll(".nav-link.active")].at(-1)?.scrollIntoView({ block: "nearest" })
  ).observe(contents, { subtree: true, attributeFilter: ["class"] });
  for (const name of article.querySelectorAll("p > strong:first-child")) {
    if (!/^Exercise \d+$/.test(name.textContent)) continue;
    const key = `${title.firstChild.data}: ${name.textContent}`;
    name.insertAdjacentHTML("afterend", ' <label class="done"><input type="checkbox"> done</label>');
    const box = name.nextElementSibling.firstChild;
    try { box.checked = localStorage.getItem(key); } catch { continue; } // a browser that keeps nothing
    box.addEventListener("change", () =>
      box.checked ? localStorage.setItem(key, "done") : localStorage.removeItem(key));
  }
  for (const list of article.querySelectorAll(".cell_output ul")) {
    const entries = [...list.children];
    if (entries.length < 20) continue;
    list.insertAdjacentHTML("beforebegin",
      `<p class="filter d-print-none"><label>A message, or words: <input class="form-control" type="search"></label>
      <output></output></p>`);
    const [field, count] = list.previousElementSibling.querySelectorAll("input, output");
    field.addEventListener("input", () => {
      for (const entry of entries) entry.hidden = !holds(entry, field.value.trim());
      count.value = `${entries.filter((entry) => !entry.hidden).length} of ${entries.length}`;
    });
  }
});
