"use strict";
// Opens, sorts and filters the rows of units, and shows the groups of an opened one.
(() => {
  const STEP = 50;
  const data = JSON.parse(document.getElementById("data").textContent);
  const numbers = new Intl.NumberFormat("en-US");
  const make = (tag, text, properties) => Object.assign(document.createElement(tag), { textContent: text }, properties);

  function duration(seconds) {
    const minutes = Math.floor(Math.max(0, seconds) / 60);
    if (minutes >= 1440) return `${numbers.format(Math.floor(minutes / 1440))} d`;
    return minutes >= 60 ? `${Math.floor(minutes / 60)} h` : `${minutes} min`;
  }

  function withTime(words, seconds) {
    const iso = new Date(seconds * 1000).toISOString();
    const small = make("small", "");
    small.append(make("time", `${iso.slice(0, 10)} ${iso.slice(11, 16)}`, { dateTime: `${iso.slice(0, 19)}Z` }));
    return [make("b", words), " ", small];
  }

  const shown = {
    name: (value) => [make("span", value, { className: "name" })],
    client: (value) => [make("span", value, { className: "client" })],
    text: (value) => [value],
    number: (value) => [numbers.format(value)],
    since: (value) => withTime(duration(data.readAt - value), value),
    until: (value) => withTime(value < data.readAt ? "overdue" : duration(value - data.readAt), value),
  };

  // Unknown values are last in either order.
  const ordered = (way) => (a, b) =>
    a === null || b === null ? (a === null) - (b === null) : way * (a < b ? -1 : a > b ? 1 : 0);

  // Makes headers sort: sort(number of the header, descending) is called on a click.
  function sortable(heads, descendingFirst, sort) {
    heads.forEach((head, n) => {
      const button = make("button", head.textContent, { type: "button" });
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const descending = before ? before === "ascending" : descendingFirst(n);
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(n, descending);
      });
      head.replaceChildren(button);
    });
  }

  // The table of the groups of one unit.
  function groupsTable(rows, caption) {
    const table = make("table", "");
    const heads = data.columns.map(([title]) => make("th", title, { scope: "col" }));
    heads.forEach((head, n) => (head.dataset.kind = data.columns[n][1]));
    const body = make("tbody", "");
    const more = make("button", "Show more", { type: "button", className: "more" });
    let order = rows;
    let count = STEP;

    function line(row) {
      const tr = make("tr", "");
      data.columns.forEach(([title, kind], n) => {
        const td = make("td", "");
        td.dataset.label = title;
        td.dataset.kind = kind;
        td.append(...(row[n] === null ? [make("span", "–", { className: "none" })] : shown[kind](row[n])));
        tr.append(td);
      });
      return tr;
    }
    function draw() {
      body.replaceChildren(...order.slice(0, count).map(line));
      more.hidden = order.length <= count;
    }
    sortable(heads, (n) => !["name", "client", "text", "until"].includes(data.columns[n][1]), (n, descending) => {
      // A longer duration is an earlier time.
      const compare = ordered(descending === (data.columns[n][1] === "since") ? 1 : -1);
      order = [...rows].sort((a, b) => compare(a[n], b[n]));
      count = STEP;
      draw();
    });
    more.addEventListener("click", () => {
      const first = count;
      count += STEP;
      draw();
      // Focus the first new row, as the button may be hidden now.
      body.rows[first].tabIndex = -1;
      body.rows[first].focus({ preventScroll: true });
    });
    const line0 = make("tr", "");
    line0.append(...heads);
    const head = make("thead", "");
    head.append(line0);
    table.append(make("caption", caption), head, body);
    draw();
    return [table, more];
  }

  const form = document.getElementById("filters");
  const units = data.units.map((unit, n) => ({ ...unit, n, body: document.getElementById(`unit-${n}`) }));

  // The groups that a search found; null = all.
  const found = (unit, text) => {
    const rows = unit.rows.filter((row) => row[0].toLowerCase().includes(text) || (row[5] ?? "").toLowerCase().includes(text));
    return `${unit.sort[0]} ${unit.text}`.toLowerCase().includes(text) ? null : rows;
  };

  function open(unit, wanted) {
    const [line, opened] = unit.body.rows;
    opened.hidden = !wanted;
    line.querySelector("button").setAttribute("aria-expanded", String(wanted));
    const rows = unit.found ?? unit.rows;
    if (wanted && unit.drawn !== rows) {
      unit.drawn = rows;
      const shownRows = rows.length ? groupsTable(rows, `Groups: ${unit.sort[0]}`) : [];
      opened.querySelector(".groups").replaceChildren(...shownRows);
    }
  }

  function filter() {
    const text = form.elements.search.value.trim().toLowerCase();
    const owner = form.elements.owner?.value ?? "";
    let count = 0;
    for (const unit of units) {
      unit.found = text ? found(unit, text) : null;
      const fits = (!owner || `=${unit.sort[1]}` === owner) && (!unit.found || unit.found.length > 0);
      unit.body.hidden = !fits;
      count += fits;
      if (fits) open(unit, !unit.body.rows[1].hidden);
    }
    const all = count === units.length ? "" : ` of ${numbers.format(units.length)}`;
    document.querySelector("#work .shown").textContent = `Showing ${numbers.format(count)}${all} ${units.length === 1 ? "row" : "rows"}`;
  }

  function fromHash() {
    const unit = units.find((each) => location.hash === `#unit-${each.n}`);
    if (!unit) return;
    if (unit.body.hidden) {
      form.reset();
      filter();
    }
    open(unit, true);
    unit.body.scrollIntoView();
    unit.body.querySelector("button").focus({ preventScroll: true });
  }

  if (form) {
    const table = document.getElementById("units");
    for (const unit of units) {
      const name = unit.body.querySelector(".opener");
      const button = make("button", name.textContent, { type: "button", className: "name opener" });
      button.setAttribute("aria-expanded", "false");
      button.addEventListener("click", () => open(unit, unit.body.rows[1].hidden));
      name.replaceWith(button);
    }
    const heads = [...table.tHead.rows[0].cells];
    sortable(heads, (n) => Number(heads[n].dataset.sort ?? 0) > 1, (n, descending) => {
      const at = Number(heads[n].dataset.sort ?? 0);
      const compare = ordered(descending ? -1 : 1);
      table.append(...[...units].sort((a, b) => compare(a.sort[at], b.sort[at])).map((unit) => unit.body));
    });
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", filter);
    form.addEventListener("reset", () => setTimeout(filter));
    window.addEventListener("hashchange", fromHash);
    // A click on the link of the unit that the address has already changes nothing there, but takes the focus.
    document.addEventListener("click", (event) => {
      if (event.target.closest("a")?.getAttribute("href") === location.hash) setTimeout(fromHash);
    });
    fromHash();
  }

  // A link to a policy opens what hides it.
  document.addEventListener("click", (event) => {
    const href = event.target.closest('a[href^="#policy-"]')?.getAttribute("href");
    const details = href && document.querySelector(href)?.closest("details");
    if (details) details.open = true;
  });

  // Light and dark: the system's setting, unless the reader chooses.
  const theme = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const label = () => (theme.textContent = isDark() ? "Light" : "Dark");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  dark.addEventListener("change", label);
  label();

  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("pre");
      let copied = true;
      try {
        await navigator.clipboard.writeText(text.textContent);
      } catch {
        const details = text.closest("details");
        if (details) details.open = true;
        getSelection().selectAllChildren(text);
        copied = document.execCommand("copy");
      }
      button.textContent = copied ? "Copied" : "Selected: copy it";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
  }
})();
