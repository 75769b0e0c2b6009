// Elements from values. Text always goes in as text: what agents say is never markup.

export const byId = (id) => document.getElementById(id);

export function element(name, { text, className, ...attributes } = {}, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Writes only what changed, so that a screen reader is told of news and of nothing else.
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export function setLines(list, lines) {
  const now = Array.from(list.children, (item) => item.textContent);
  if (now.length === lines.length && now.every((line, place) => line === lines[place])) return;
  list.replaceChildren(...lines.map((line) => element("li", { text: line })));
}
