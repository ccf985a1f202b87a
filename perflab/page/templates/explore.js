"use strict";
// Tables that can be sorted, filtered and searched, and links to what is folded. All state is the address's fragment.
(() => {
  const fragment = () => {
    const text = location.hash.slice(1);
    return new URLSearchParams(text && !text.includes("=") ? "at=" + text : text);
  };
  const keep = (state, push) => {
    const text = state.toString();
    try {
      const address = text ? "#" + text : location.href.split("#")[0];
      history[push ? "pushState" : "replaceState"](null, "", address);
    } catch { /* a sandbox has no history: the page works without */ }
  };
  const set = (state, name, value) => value ? state.set(name, value) : state.delete(name);
  const compare = new Intl.Collator(undefined, { numeric: true }).compare;
  const explorers = [...document.querySelectorAll(".explorer")].map(explorer);

  function explorer(box, number) {
    const name = (key) => number ? key + number : key;
    const table = box.querySelector("table"), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    const keys = heads.map((head) => head.dataset.key), rows = [...body.rows];
    const controls = box.querySelector(".controls"), shown = controls.querySelector("output");
    const search = controls.querySelector("[name=q]");
    const verdicts = [...controls.querySelectorAll("[name=verdict]")];
    const columns = [...controls.querySelectorAll("[name=column]")];
    const usual = columns.filter((one) => one.checked).map((one) => one.value).join();
    const sections = rows.map((row) => [...row.querySelectorAll('a[href^="#"]')].flatMap((link) =>
      document.getElementById(link.hash.slice(1))?.closest("details.case") ?? []));
    let texts = null;
    controls.hidden = false;
    heads.forEach((head, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const state = fragment(), now = state.get(name("sort")), key = keys[at];
        const first = head.classList.contains("n") ? "-" + key : key, second = head.classList.contains("n") ? key : "-" + key;
        set(state, name("sort"), now === first ? second : now === second ? "" : first);
        state.delete("at");
        keep(state);
        apply(state);
      });
    });
    const change = () => {
      const state = fragment(), chosen = columns.filter((one) => one.checked).map((one) => one.value).join();
      set(state, name("q"), search.value);
      set(state, name("verdict"), verdicts.filter((one) => one.checked).map((one) => one.value).join());
      set(state, name("columns"), chosen === usual ? "" : chosen || "none");
      state.delete("at");
      keep(state);
      apply(state);
    };
    controls.addEventListener("input", change);
    const chooser = controls.querySelector(".columns");
    document.addEventListener("click", (event) => {
      if (!chooser.contains(event.target)) chooser.open = false;
    });
    chooser.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      chooser.open = false;
      chooser.querySelector("summary").focus();
    });
    controls.querySelector("[name=reset]").addEventListener("click", () => {
      const state = fragment();
      for (const key of ["q", "verdict", "columns", "sort", "at"]) state.delete(key === "at" ? key : name(key));
      keep(state);
      apply(state);
    });

    function apply(state) {
      const words = (state.get(name("q")) || "").toLowerCase().split(/\s+/).filter(Boolean);
      const wanted = new Set((state.get(name("verdict")) || "").split(",").filter(Boolean));
      const seen = new Set((state.get(name("columns")) || usual).split(","));
      if (search.value.trim() !== (state.get(name("q")) || "").trim()) search.value = state.get(name("q")) || "";
      for (const one of verdicts) one.checked = wanted.has(one.value);
      for (const one of columns) {
        one.checked = seen.has(one.value);
        table.classList.toggle("h" + (keys.indexOf(one.value) + 1), !one.checked);
      }
      if (words.length && !texts) texts = rows.map((row) => row.textContent.toLowerCase());
      let many = 0;
      rows.forEach((row, at) => {
        const verdicts = (row.dataset.verdict || "").split(",");
        const fits = (!wanted.size || verdicts.some((one) => wanted.has(one))) && words.every((word) => texts[at].includes(word));
        many += fits;
        row.hidden = !fits;
        for (const section of sections[at]) section.hidden = !fits;
      });
      const what = rows.length === 1 ? box.dataset.what : box.dataset.many;
      shown.textContent = many === rows.length ? `${many} ${what}` : `${many} of ${rows.length} ${what}`;
      sort(state.get(name("sort")) || "");
    }

    let sorted = "";
    function sort(by) {
      const down = by.startsWith("-"), at = keys.indexOf(by.replace(/^-/, ""));
      heads.forEach((head, number) => {
        head.setAttribute("aria-sort", number !== at ? "none" : down ? "descending" : "ascending");
      });
      if (by === sorted) return;
      sorted = by;
      const value = (row) => {
        const cell = row.cells[at], number = cell.dataset.v;
        return number !== undefined ? +number : heads[at].classList.contains("n") ? null : cell.textContent;
      };
      const order = at < 0 ? rows.slice() : rows.map((row) => [value(row), row]).sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);
        const sign = typeof a === "number" && typeof b === "number" ? a - b : compare(a, b);
        return down ? -sign : sign;
      }).map(([, row]) => row);
      body.append(...order);
    }
    return apply;
  }

  function go(state) {
    const target = state.get("at") && document.getElementById(state.get("at"));
    if (!target) return;
    for (let one = target; one; one = one.parentElement) {
      if (one.localName === "details") one.open = true;
      one.hidden = false;
    }
    target.scrollIntoView();
    target.setAttribute("tabindex", "-1");
    target.focus({ preventScroll: true });
  }
  const all = () => {
    const state = fragment();
    for (const apply of explorers) apply(state);
    go(state);
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#"]');
    if (!link || link.hash.includes("=") || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const state = fragment();
    state.set("at", link.hash.slice(1));
    keep(state, true);
    go(state);
  });
  // A page is printed as it is read: what is folded has no place to click on paper.
  const mostPrinted = 200;
  let unfolded = [];
  window.addEventListener("beforeprint", () => {
    const shown = [...document.querySelectorAll("details.case")].filter((one) => !one.hidden);
    const chosen = shown.length > mostPrinted ? shown.filter((one) => one.open) : shown;
    unfolded = [...chosen, ...document.querySelectorAll("details.more")].filter((one) => !one.open);
    for (const one of unfolded) one.open = true;
    for (const note of document.querySelectorAll(".unprinted")) note.hidden = chosen === shown;
  });
  window.addEventListener("afterprint", () => { for (const one of unfolded) one.open = false; });
  window.addEventListener("hashchange", all);
  window.addEventListener("popstate", all);
  all();
})();
