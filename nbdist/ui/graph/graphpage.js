// Puts the graph's picture into the page in place of its PNG, and opens and closes its scopes: no kernel is asked.
// The geometry is that of nbdist/graph/layout/stretch.py, the paths are those of nbdist/ui/graph/marks.py.
(async (script) => {
  const root = script?.closest(".nbdist-graph") ?? [...document.querySelectorAll(".nbdist-graph:not([data-drawn])")].pop();
  const packed = Uint8Array.from(atob(root.querySelector('script[type="application/gzip"]').textContent.trim()), (c) => c.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const { svg: source, sheets, size } = JSON.parse(await new Response(plain).text());
  const svg = document.importNode(new DOMParser().parseFromString(source, "image/svg+xml").documentElement, true);
  const groups = [...svg.querySelectorAll(".nbd-sheet")];
  const scopes = [...svg.querySelectorAll(".nbd-box")];
  const n = (value) => String(Math.round(value * 10) / 10 + 0);
  const move = (node, x, y) => node.setAttribute("transform", `translate(${n(x)} ${n(y)})`);
  const fit = (node, width, height) => (node.setAttribute("width", n(width)), node.setAttribute("height", n(height)));

  const scale = (stops, shifts) => (value) => {
    let i = stops.length;
    while (i > 0 && stops[i - 1] > value) i--;
    return value + shifts[i];
  };

  function stretched(needs) {
    const stops = [], shifts = [0], map = scale(stops, shifts);
    for (const [start, end, length] of needs.sort((a, b) => a[1] - b[1])) {
      const shift = Math.max(shifts[shifts.length - 1], map(start) + length - end);
      stops.push(end);
      shifts.push(shift);
    }
    return map;
  }

  function resized(bands) {
    const stops = [], shifts = [0];
    for (const [start, end, length] of bands) {
      stops.push(end);
      shifts.push(shifts[shifts.length - 1] + length - (end - start));
    }
    return scale(stops, shifts);
  }

  function within(value, a, b, margin) {
    const [low, high] = [Math.min(a, b), Math.max(a, b)];
    const least = Math.min(margin, (high - low) / 2);
    return Math.min(Math.max(value, low + least), high - least);
  }

  const at = ([x, y]) => `${n(x)} ${n(y)}`;

  function swinging(points) {
    return points.slice(1).reduce((path, [x, y], i) => {
      const [x0, y0] = points[i], middle = (y0 + y) / 2;
      return path + (i % 2 ? `C${at([x0, middle])} ${at([x, middle])} ${at([x, y])}` : `L${at([x, y])}`);
    }, `M${at(points[0])}`);
  }

  function turning(points) {
    const length = (a, b) => Math.abs(a[0] - b[0]) + Math.abs(a[1] - b[1]);
    const towards = (a, b, distance) => a.map((value, i) => value + (distance / (length(a, b) || 1)) * (b[i] - value));
    let path = `M${at(points[0])}`;
    for (let i = 1; i < points.length - 1; i++) {
      const [before, turn, after] = points.slice(i - 1, i + 2);
      const radius = Math.min(6, length(before, turn) / 2, length(turn, after) / 2);
      path += `L${at(towards(turn, before, radius))}Q${at(turn)} ${at(towards(turn, after, radius))}`;
    }
    return `${path}L${at(points[points.length - 1])}`;
  }

  // Lays a sheet out with what is open in it; returns its size and where its ports are.
  function spread(number) {
    const sheet = sheets[number];
    const [frames, lines, labels, nodes] = groups[number].children;
    const boxes = sheet.spots.map(([x, room, width, height, row, inner], i) => {
      const open = inner >= 0 && nodes.children[i].classList.contains("nbd-opened") ? spread(inner) : null;
      return { x, room, row, open, width: open?.width ?? width, height: open?.height ?? height };
    });
    const x = stretched(boxes.map((box) => [box.x, box.x + box.room, box.width]));
    const highest = sheet.bands.map(([top, bottom], row) => {
      const heights = boxes.filter((box) => box.row === row).map((box) => box.height);
      return [top, bottom, heights.length ? Math.max(...heights) : bottom - top];
    });
    const y = resized(highest);
    const [width, height] = [x(sheet.width), y(sheet.height)];
    boxes.forEach((box, i) => {
      const [top, bottom] = sheet.bands[box.row];
      box.left = x(box.x);
      box.top = y(top) + Math.min((y(bottom) - y(top) - box.height) / 2, 12);
      move(nodes.children[i], box.left, box.top);
      if (box.open) fit(nodes.children[i].querySelector(":scope > .nbd-open > rect"), box.width, box.height);
    });
    sheet.frames.forEach(([left, right], i) => {
      move(frames.children[i], x(left), 0);
      fit(frames.children[i].querySelector("rect"), x(right) - x(left), height);
    });
    const [into, out] = [sheet.into.map(x), sheet.out.map(x)];
    let texts = 0;
    sheet.lines.forEach(([source, target, track, leave, leavePort, enter, enterPort, bends, text], i) => {
      const [from, to] = [boxes[source], boxes[target]];
      const start = from ? [from.left + (from.open ? from.open.out[leavePort] : leave * from.width), from.top + from.height] : [into[leavePort], 0];
      const end = to ? [to.left + (to.open ? to.open.into[enterPort] : enter * to.width), to.top] : [out[enterPort], height];
      const points = [start];
      let label = text && [x(text[0]), y(text[1])];
      if (track) {
        const middle = bends.length === 3 ? x(bends[1]) : end[0];
        points.push([start[0], y(bends[0])], [middle, y(bends[0])]);
        if (bends.length === 3) points.push([middle, y(bends[2])], [end[0], y(bends[2])]);
        if (text) label[0] = within(label[0], points[points.length - 2][0], end[0], text[2]);
      } else {
        points.push([start[0], y(bends[0])]);
        for (let k = 1; k < bends.length - 1; k += 3) points.push([x(bends[k]), y(bends[k + 1])], [x(bends[k]), y(bends[k + 2])]);
        points.push([end[0], y(bends[bends.length - 1])]);
        if (text) label = [points[1][0], points[1][1] + 11];
      }
      points.push(end);
      const [shaft, head] = lines.children[i].querySelectorAll("path");
      shaft.setAttribute("d", track ? turning(points) : swinging(points));
      head?.setAttribute("d", `M${at([end[0] - 3.6, end[1] - 6])}L${at([end[0] + 3.6, end[1] - 6])}L${at(end)}Z`);
      if (head) head.style.display = to?.open ? "none" : "";
      if (text) move(labels.children[texts++], ...label);
    });
    return { width, height, into, out };
  }

  function draw() {
    const { width, height } = spread(0);
    const [wide, high] = [Math.max(width, size.least) + 2 * size.margin, height + size.below + 2 * size.margin];
    move(svg.querySelector(":scope > .nbd-keys"), 0, height + size.gap);
    fit(svg, wide, high);
    svg.setAttribute("viewBox", `${-size.margin} ${-size.margin} ${n(wide)} ${n(high)}`);
    svg.style.maxWidth = "none"; // notebooks fit a picture to the page, however small it gets
    svg.style.width = `clamp(${n(wide * size.smallest)}px, 100%, ${n(wide)}px)`;
  }

  function toggle(scope, open) {
    scope.classList.toggle("nbd-opened", open);
    draw();
  }

  const button = (text, open) => {
    const node = document.createElement("button");
    node.textContent = text;
    node.onclick = () => (scopes.forEach((scope) => scope.classList.toggle("nbd-opened", open)), draw());
    return node;
  };

  for (const scope of scopes) {
    const [shut, close] = [scope.querySelector(":scope > .nbd-shut"), scope.querySelector(":scope > .nbd-open > .nbd-close")];
    for (const [node, open, other] of [[shut, true, close], [close, false, shut]]) {
      node.addEventListener("click", () => toggle(scope, open));
      node.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        toggle(scope, open);
        other.focus();
      });
    }
  }
  const tools = document.createElement("p");
  tools.className = "nbd-tools";
  if (scopes.length) tools.append(button("Open all scopes", true), button("Close all scopes", false));
  const view = document.createElement("div");
  view.className = "nbd-view";
  view.append(svg);
  root.querySelector("p > img").parentElement.replaceWith(tools, view);
  root.dataset.drawn = "";
  draw();
})(document.currentScript);
