() => {
    const it = document.activeElement, style = getComputedStyle(it);
    const beside = it.type === "radio" ? getComputedStyle(it.nextElementSibling) : style;
    const shown = beside.outlineStyle !== "none" && parseFloat(beside.outlineWidth) > 0;
    return [it.id || it.className || it.tagName, it.tagName, shown];
}