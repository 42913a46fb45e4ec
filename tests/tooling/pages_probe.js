// Looks at a page as its reader would, and tells the page around it what is there. PAGE is its name.

// In the text of the page, without what the theme puts around it.
const select = (selector) => [...document.querySelectorAll(`.bd-article ${selector}`)];
const textOf = (element) => element.textContent;
const isShown = (element) => element.getBoundingClientRect().width > 0;

// How many folds are open, and the theme: before, while and after it is printed.
function printed() {
  const state = () => [select("details[open]").length, document.documentElement.dataset.theme];
  const states = [state()];
  dispatchEvent(new Event("beforeprint"));
  states.push(state());
  dispatchEvent(new Event("afterprint"));
  states.push(state());
  return states;
}

function isSquashed(image) {
  const shape = image.width / image.height;
  return Math.abs((shape * image.naturalHeight) / image.naturalWidth - 1) > 0.03;
}

// Whether the field above a list does not find an entry by its name, or by a message with numbers.
function isLost(entry) {
  const list = entry.parentElement;
  const field = list.previousElementSibling.querySelector("input");
  const found = (words) => {
    field.value = words;
    field.dispatchEvent(new Event("input"));
    return [...list.children].filter(isShown);
  };
  const codes = [...entry.querySelectorAll("code")].map(textOf);
  const messages = codes.filter((code) => code.includes(": ..."));
  for (const words of [textOf(entry.querySelector("a")), ...messages]) {
    const few = found(words.replaceAll("...", " 0x7f "));
    if (!few.includes(entry) || few.length > 12) return true;
  }
  return found("").length == 0; // and leaves the whole list
}

// Whether a tick at an exercise is still there tomorrow.
function isKept(box) {
  const before = localStorage.length;
  box.click();
  return localStorage.length == before + 1;
}

function look() {
  document.documentElement.dataset.theme = "dark";
  const print = printed();
  select(".unfold").forEach((button) => button.click());
  const code = ":not(.highlight-myst-ansi) > .highlight > pre";
  const found = {
    print: print,
    inner: innerWidth,
    open: select("details[open]").length,
    fields: select(".filter").length,
    done: select(".done input").filter(isKept).length,
    // Each of these is a fault, also in what was folded.
    wide: document.documentElement.scrollWidth > innerWidth,
    uncopied: select(`${code}:not(:has(+ .copybtn))`).length,
    undrawn: select("math").filter((each) => !isShown(each)).map(textOf),
    squashed: select(".cell_output img").filter(isSquashed).map((image) => image.alt),
    lost: select(".filter + ul > li").filter(isLost).map(textOf),
  };
  parent.postMessage([PAGE, found], "*");
}

addEventListener("load", () => setTimeout(look, 1000)); // the theme lays out its tables first
