"use strict";
// A button on each piece of code that copies it. Without this script, all else works.
for (const box of document.querySelectorAll(".code, .prose .highlight, .prose > pre")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-live", "polite");
  const text = (box.querySelector("pre") || box).textContent;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "The browser refused";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  box.append(button);
}
// On a phone the contents would push the text off the first screen.
if (matchMedia("(max-width: 64rem)").matches) {
  document.querySelector(".contents details")?.removeAttribute("open");
}
