// Text to copy: in a box with a button. It is text for people to read first: nothing here runs it.

import { element } from "./dom.js";

// `text`: what is copied; `label`: what it is, for the button's name. `content`: nodes that show it, instead of the text.
export function copyBox(text, label, content = [document.createTextNode(text)]) {
  const button = element("button", { type: "button", className: "button copy", "aria-label": `Copy ${label}`, text: "Copy" });
  const said = element("span", { className: "visually-hidden", role: "status" });
  button.addEventListener("click", async () => {
    const copied = await copy(text);
    button.textContent = copied ? "Copied" : "Not copied";
    said.textContent = copied ? `Copied ${label}` : "The browser does not let a page copy: select the text";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return element("div", { className: "copy-box" }, element("pre", { tabindex: "0", role: "region", "aria-label": label }, ...content), button, said);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

// Browsers have no clipboard object on a plain-HTTP page of another host, which most collectors are.
function copyBySelection(text) {
  const before = document.activeElement;
  const area = element("textarea", { className: "visually-hidden", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  before?.focus();
  return copied;
}
