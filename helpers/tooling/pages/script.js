"use strict";
// A button above each piece of code that copies it. Without this script, all else works.
for (const code of document.querySelectorAll(".code pre, .prose pre")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-live", "polite");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "The browser refused";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  code.before(button);
}
// On a phone the contents would push the text off the first screen.
if (matchMedia("(max-width: 64rem)").matches) {
  document.querySelector(".contents details")?.removeAttribute("open");
}
