// A field above a long list of entries: it keeps those that hold all words of what is written there,
// or of which a message is written there as it was printed, as `limits.find` does.
const joined = (text) => text.replace(/\s/g, "");
const fragments = (code) => code.textContent.split(": ...")[1]?.split("...").filter(joined) ?? [];
const holds = (entry, said) =>
  said.toLowerCase().split(/\s+/).every((word) => entry.textContent.toLowerCase().includes(word)) ||
  [...entry.querySelectorAll("code")].map(fragments).some((parts) =>
    parts.length && parts.every((part) => joined(said).includes(joined(part))));

addEventListener("DOMContentLoaded", () => {
  for (const list of document.querySelectorAll(".cell_output ul")) {
    const entries = [...list.children];
    if (entries.length < 20) continue;
    list.insertAdjacentHTML("beforebegin",
      '<p class="filter"><label>A message, or words: <input type="search"></label> <output></output></p>');
    const [field, count] = list.previousElementSibling.querySelectorAll("input, output");
    field.addEventListener("input", () => {
      for (const entry of entries) entry.hidden = !holds(entry, field.value.trim());
      count.value = `${entries.filter((entry) => !entry.hidden).length} of ${entries.length}`;
    });
  }
});
