"use strict";
// What lies where in the picture of a memory timeline, and a list of its blocks to search. All it reads is in the page.
(() => {
  const MOST = 200;
  for (const box of document.querySelectorAll(".memory")) start(box);

  function digits(value) {
    if (value >= 99999.5) return value.toExponential(2).replace(/e\+(\d)$/, "e+0$1");
    const places = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, scale = 10 ** places;
    // Python rounds what lies in the middle to the even digit, and toFixed up: an odd number of halves of the last place.
    const isMiddle = Math.abs(value * 2 ** (places + 1) % 2) === 1, low = Math.floor(value * scale);
    return (isMiddle ? (low + low % 2) / scale : value).toFixed(places);
  }
  function bytes(value) {
    for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
      if (value >= 0.9995 * size) return `${digits(value / size)} ${unit}`;
    return `${value} B`;
  }
  function time(ns) {
    if (!ns) return "0 s";
    for (const [unit, size] of [["h", 3600e9], ["min", 60e9]]) if (ns >= 2 * size) return `${digits(ns / size)} ${unit}`;
    for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]])
      if (ns >= 0.9995 * size) return `${digits(ns / size)} ${unit}`;
    return `${digits(ns)} ns`;
  }
  const count = (value) => value.toLocaleString("en-US");
  function summed(steps) {
    let sum = 0;
    return steps.map((step) => sum += step);
  }
  function made(tag, text, kind) {
    const one = document.createElement(tag);
    if (text !== undefined) one.textContent = text;
    if (kind) one.className = kind;
    return one;
  }

  function start(box) {
    const data = JSON.parse(box.querySelector("script").textContent), { frame, shown, width } = data;
    const in_ns = (ticks) => ticks * data.tick_ns;
    const keys = Object.keys(data.stackings), times = summed(data.times).map(in_ns), starts = summed(data.from);
    const kinds = data.kinds.map(([size, category, tensor, module, line, stack, ...bands]) => {
      const [what, shape, where, place, calls] = [category, tensor, module, line, stack].map((number) => data.texts[number]);
      const search = [what, shape, where, place, calls, bytes(size)].join(" ").toLowerCase();
      return { size, what, shape, where, place, calls, bands, search };
    });
    // Of the columns, the first that shows a moment as late as this one.
    function column_of(moment) {
      let low = 0, high = shown.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (shown[middle] < moment) low = middle + 1;
        else high = middle;
      }
      return low;
    }
    const blocks = data.kind.map((kind, number) => ({
      ...kinds[kind], number, from: starts[number], to: data.life[number] ? starts[number] + data.life[number] : Infinity,
    }));
    // The same as plain numbers, for sums over all blocks of a band: the columns of each block, and its size.
    const since = Int32Array.from(blocks, (block) => column_of(block.from));
    const until = Int32Array.from(blocks, (block) => column_of(block.to)), sizes_of = Float64Array.from(blocks, (block) => block.size);
    const there = (block, moment) => block.from <= moment && moment < block.to;
    const size = (ones) => ones.reduce((total, one) => total + one.size, 0);
    const alive = (column) => data.stackings[keys[0]].bands[column].reduce((sum, one) => sum + one, 0);
    const clock = (moment) => times.length ? ` (${time(moment ? times[moment - 1] : 0)})` : "";
    const came = (block) => block.from ? count(block.from) + clock(block.from) : "before the recording";
    const went = (block) => block.to === Infinity ? "never" : count(block.to) + clock(block.to);

    const figure = box.querySelector("figure"), tip = made("div", "", "tip");
    tip.hidden = true;
    figure.append(tip);
    const list = box.querySelector(".blocks"), search = list.querySelector("[name=q]");
    const at = list.querySelector("[name=moment]"), said = list.querySelector("output"), body = list.querySelector("tbody");
    list.hidden = false;
    for (const key of keys) point(box.querySelector(`.by-${key} > svg`), key);

    function point(svg, key) {
      const { names, bands, counted } = data.stackings[key], order = keys.indexOf(key);
      const over = document.createElementNS(svg.namespaceURI, "rect"), mark = document.createElementNS(svg.namespaceURI, "polygon");
      const members = names.map((_, band) => blocks.filter((block) => block.bands[order] === band));
      const numbers = members.map((ones) => Int32Array.from(ones, (block) => block.number));
      const where = { x: frame.left, y: frame.top, width: frame.width, height: frame.height };
      for (const [name, value] of Object.entries(where)) over.setAttribute(name, value);
      over.setAttribute("class", "over");
      mark.setAttribute("class", "mark");
      svg.append(mark, over);
      const x = (column) => frame.left + frame.width * Math.min(column * width / (data.moments + 1), 1);
      const y = (value) => frame.top + frame.height * (1 - value / data.top_bytes);
      // So many bytes over some columns, on as many as low has for each of them.
      function outlined(first, last, low, size) {
        const upper = [], lower = [];
        for (let column = first; column < last; column++) {
          const bottom = y(low(column)), top = Math.min(y(low(column) + size), bottom - 1);
          for (const side of [x(column), x(column + 1)]) {
            upper.push(`${side},${top}`);
            lower.push(`${side},${bottom}`);
          }
        }
        mark.setAttribute("points", [...upper, ...lower.reverse()].join(" "));
      }
      // A block lies on the bands below its own, and on those of its band that come before it.
      function below(block) {
        const low = new Float64Array(shown.length + 1), band = block.bands[order];
        for (const one of numbers[band]) {
          if (one === block.number) break;
          low[since[one]] += sizes_of[one];
          low[until[one]] -= sizes_of[one];
        }
        for (let column = 0, sum = 0; column < shown.length; column++) {
          low[column] = sum += low[column];
          for (let other = 0; other < band; other++) low[column] += bands[column][other];
        }
        return low;
      }
      let marked = null;
      const stretch = (event) => {
        const inside = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
        const moment = Math.floor((inside.x - frame.left) / frame.width * (data.moments + 1));
        const column = Math.max(0, Math.min(Math.floor(moment / width), shown.length - 1));
        return [column, (frame.top + frame.height - inside.y) / frame.height * data.top_bytes];
      };
      over.addEventListener("pointermove", (event) => {
        const [column, height] = stretch(event), moment = shown[column], sizes = bands[column];
        let low = 0, band = 0;
        while (band < sizes.length && low + sizes[band] <= height) low += sizes[band++];
        let block = null, size = sizes[band] ?? 0;
        if (band < sizes.length) {
          let base = low;
          block = members[band].find((one) => {
            if (!there(one, moment)) return false;
            if (height < base + one.size) return true;
            base += one.size;
            return false;
          }) ?? null;
          [low, size] = block ? [base, block.size] : [base, low + size - base];
        }
        if (!block) outlined(column, column + 1, () => band < sizes.length ? low : 0, band < sizes.length ? size : data.top_bytes);
        else if (block !== marked) {
          const lows = below(block);
          outlined(since[block.number], until[block.number], (one) => lows[one], block.size);
        }
        marked = block;
        const lines = [];
        if (block) {
          lines.push([`${bytes(block.size)} ${block.what}`, block.shape].filter(Boolean).join(", "));
          lines.push([block.where && `in ${block.where}`, block.place].filter(Boolean).join(", "));
          lines.push(`allocated: ${came(block)}, freed: ${went(block)}`, block.calls === block.place ? "" : block.calls);
        } else if (band < sizes.length) lines.push(`${bytes(size)} in blocks that are in the picture alone`);
        const then = band < counted ? " at the peak" : "";
        if (band < sizes.length) lines.push(`band: ${names[band]}${then}; here ${bytes(sizes[band])}`);
        const when = data.shown_times.length ? ` (${time(in_ns(data.shown_times[column]))})` : "";
        const stage = data.shown_stage[column] < 0 ? "" : `, ${data.texts[data.shown_stage[column]]}`;
        lines.push(`moment ${count(moment)}${when}${stage}: ${bytes(alive(column))} alive`);
        tip.replaceChildren(...lines.filter(Boolean).map((line, number) => made(block && !number ? "b" : "span", line)));
        tip.hidden = false;
        const room = figure.getBoundingClientRect(), right = event.clientX - room.left;
        tip.style.left = right > room.width / 2 ? "" : `${right + 14}px`;
        tip.style.right = right > room.width / 2 ? `${room.width - right + 14}px` : "";
        tip.style.top = `${event.clientY - room.top + 14}px`;
      });
      over.addEventListener("pointerleave", () => {
        tip.hidden = true;
        mark.setAttribute("points", "");
        marked = null;
      });
      over.addEventListener("click", (event) => {
        at.value = shown[stretch(event)[0]];
        list.open = true;
        find();
      });
    }

    function find() {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const moment = at.value === "" ? null : Number(at.value);
      const found = blocks.filter((block) =>
        (moment === null || there(block, moment)) && words.every((word) => block.search.includes(word)));
      found.sort((one, other) => other.size - one.size || one.from - other.from);
      const sum = size(found);
      const rows = found.slice(0, MOST).map((block) => {
        const row = made("tr");
        row.append(made("td", bytes(block.size), "n"), made("td", block.what), made("td", block.shape), made("td", block.where),
          made("td", block.place), made("td", came(block), "n"), made("td", went(block), "n"), made("td", block.calls));
        return row;
      });
      body.replaceChildren(...rows);
      const many = `${count(found.length)} ${found.length === 1 ? "block" : "blocks"}, ${bytes(sum)} (${count(sum)} B)`;
      said.textContent = many + missing(moment) + (found.length > MOST ? `; the ${MOST} largest are listed` : "");
    }
    function missing(moment) {
      if (blocks.length === data.blocks) return "";
      const column = moment === null ? -1 : shown.indexOf(moment);
      if (column < 0) return ` of the ${count(blocks.length)} blocks that the page has`;
      const all = alive(column), more = all - size(blocks.filter((block) => there(block, moment)));
      return more ? ` of ${bytes(all)} alive; ${bytes(more)} more are in the picture alone` : "";
    }
    search.addEventListener("input", find);
    at.addEventListener("input", find);
    list.addEventListener("toggle", find, { once: true });
  }
})();
