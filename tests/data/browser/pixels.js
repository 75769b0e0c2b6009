async ([data, places]) => {
    const image = new Image();
    image.src = `data:image/png;base64,${data}`;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height), pen = canvas.getContext("2d");
    pen.drawImage(image, 0, 0);
    return places.map(([x, y]) => Array.from(pen.getImageData(x, y, 1, 1).data.slice(0, 3)));
}