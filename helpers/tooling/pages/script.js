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
// A picture opens as large as the window or, where that is more, as it was drawn.
const zoomed = document.createElement("dialog");
zoomed.className = "zoomed";
zoomed.setAttribute("aria-label", "Picture");
const large = document.createElement("img");
const close = document.createElement("button");
close.type = "button";
close.textContent = "Close";
zoomed.append(close, large);
zoomed.addEventListener("click", () => zoomed.close());
document.body.append(zoomed);
for (const picture of document.querySelectorAll("main img")) {
  const zoom = document.createElement("button");
  zoom.type = "button";
  zoom.className = "zoom";
  zoom.title = "Enlarge";
  picture.replaceWith(zoom);
  zoom.append(picture);
  zoom.addEventListener("click", () => {
    const { naturalWidth: width, naturalHeight: height } = picture;
    large.src = picture.src;
    large.alt = picture.alt;
    const room = innerHeight - 40; // below the button
    large.className = picture.className;
    large.style.width = `${width * Math.max(1, Math.min(innerWidth / width, room / height))}px`;
    zoomed.showModal();
  });
}
// On a phone the contents would push the text off the first screen.
if (matchMedia("(max-width: 64rem)").matches) {
  document.querySelector(".contents details")?.removeAttribute("open");
}
