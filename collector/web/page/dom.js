// DOM helpers. Text is always set as text: what agents send never becomes markup.

export const byId = (id) => document.getElementById(id);

export function element(name, { text, className, ...attributes } = {}, ...children) {
  const created = document.createElement(name);
  if (className) created.className = className;
  if (text !== undefined) created.textContent = text;
  for (const [key, value] of Object.entries(attributes)) created.setAttribute(key, value);
  created.append(...children);
  return created;
}

// Writes only what changed, so that a screen reader announces changes and nothing else.
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// The same for the items of a list.
export function setLines(list, lines) {
  const now = Array.from(list.children, (item) => item.textContent);
  if (now.length === lines.length && now.every((line, place) => line === lines[place])) return;
  list.replaceChildren(...lines.map((line) => element("li", { text: line })));
}

// Puts new children in place of the old ones. A link that has the focus keeps it: a page that is drawn anew every few
// seconds takes nobody's place away.
export function redraw(target, children) {
  const focused = target.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  target.replaceChildren(...children);
  if (focused) [...target.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
}

// A function that draws only when what it is given differs from the last time, so that what is focused or selected stays.
export function onChange(draw) {
  let last;
  return (value) => {
    const text = JSON.stringify(value);
    if (text === last) return;
    last = text;
    draw(value);
  };
}
