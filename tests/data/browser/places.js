() => {
    const box = document.getElementById("heat-canvas").getBoundingClientRect(), each = (box.height - 26) / ROWS;
    const at = (x, y) => [Math.round(x + scrollX), Math.round(y + scrollY)];
    const rows = Array.from({ length: ROWS }, (_, n) => at(box.left + box.width * 0.7, box.top + (n + 0.5) * each));
    const bars = ["input", "forward", "backward", "optimizer"].map((name) => {
        const bar = document.querySelector(`#timeline rect.part-${name}`).getBoundingClientRect();
        return at(bar.left + Math.min(3, bar.width / 2), bar.top + 4);
    });
    return [...rows, ...bars];
}