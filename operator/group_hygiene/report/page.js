"use strict";
// Sorts, filters and pages the tables of rows. The filters of the groups are in the location's hash.
(() => {
  const STEP = 50;
  const data = JSON.parse(document.getElementById("data").textContent);
  const numbers = new Intl.NumberFormat("en-US");
  const WEEK = 7 * 86400;
  const collator = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

  const make = (tag, text, properties) => Object.assign(document.createElement(tag), { textContent: text }, properties);

  function duration(seconds) {
    const minutes = Math.floor(Math.max(0, seconds) / 60);
    if (minutes >= 1440) return `${numbers.format(Math.floor(minutes / 1440))} d`;
    return minutes >= 60 ? `${Math.floor(minutes / 60)} h` : `${minutes} min`;
  }

  function time(seconds) {
    const iso = new Date(seconds * 1000).toISOString();
    return make("time", `${iso.slice(0, 10)} ${iso.slice(11, 16)}`, { dateTime: `${iso.slice(0, 19)}Z` });
  }

  function withTime(words, seconds) {
    const small = make("small", "");
    small.append(time(seconds));
    return [make("b", words), " ", small];
  }

  const shown = {
    name: (value) => [make("span", value, { className: "name" })],
    client: (value) => [make("span", value, { className: "client" })],
    text: (value) => [value],
    number: (value) => [numbers.format(value)],
    moment: (value) => [time(value)],
    since: (value) => withTime(duration(data.readAt - value), value),
    until: (value) => withTime(value < data.readAt ? "overdue" : duration(value - data.readAt), value),
  };

  // One table: its rows, their order, and how many of them are in the document. summary: text for (shown, all).
  function table(name, summary) {
    const root = document.getElementById(name);
    if (!root) return null;
    const { columns, rows } = data.tables[name];
    const heads = [...root.querySelectorAll("thead th")];
    const body = root.querySelector("tbody");
    const more = root.querySelector(".more");
    const status = root.querySelector(".shown");
    const labels = heads.map((head) => head.textContent);
    let sorted = heads.findIndex((head) => head.ariaSort);
    let descending = heads[sorted].ariaSort === "descending";
    let found = rows;
    let count = STEP;

    const line = (row) => {
      const tr = document.createElement("tr");
      columns.forEach(([at, kind], n) => {
        const td = document.createElement("td");
        td.dataset.label = labels[n];
        td.dataset.kind = kind;
        const cells = row[at] === null ? [make("span", "–", { className: "none" })] : shown[kind](row[at]);
        td.append(...cells);
        tr.append(td);
      });
      return tr;
    };

    function draw() {
      const [at, kind] = columns[sorted];
      // A longer duration is an earlier time.
      const way = descending === (kind === "since") ? 1 : -1;
      const order = [...found].sort((a, b) => {
        // Unknown values are last in either order.
        if (a[at] === null || b[at] === null) return (a[at] === null) - (b[at] === null);
        return way * collator(a[at], b[at]);
      });
      body.replaceChildren(...order.slice(0, count).map(line));
      heads.forEach((head, n) => {
        if (n === sorted) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      more.hidden = found.length <= count;
      status.textContent = summary(Math.min(count, found.length), found.length);
    }

    heads.forEach((head, n) => {
      const button = make("button", labels[n], { type: "button" });
      button.addEventListener("click", () => {
        const words = ["name", "client", "text"].includes(columns[n][1]);
        descending = n === sorted ? !descending : !words;
        sorted = n;
        count = STEP;
        draw();
      });
      head.replaceChildren(button);
    });
    more.addEventListener("click", () => {
      const before = count;
      count += STEP;
      draw();
      // Focus the first new row, as the button may be hidden now.
      body.rows[before].tabIndex = -1;
      body.rows[before].focus({ preventScroll: true });
    });
    return {
      show(wanted) {
        found = rows.filter(wanted);
        count = STEP;
        draw();
      },
    };
  }

  const some = (there, all) => `Showing ${numbers.format(there)} of ${numbers.format(all)} ${all === 1 ? "row" : "rows"}`;
  for (const name of ["soon-table", "lag-table"]) {
    data.tables[name].rows = data.tables[name].rows.map((n) => data.tables["groups-table"].rows[n]);
  }
  for (const name of ["soon-table", "lag-table", "stale-table"]) table(name, some)?.show(() => true);

  // The table of groups, and its filters.
  const form = document.getElementById("filters");
  const FILTERS = ["search", "owner", "state", "type", "age", "idle", "expires", "pattern"].filter(
    (name) => form?.elements[name],
  );
  let wanted = {};
  const isIdle = (row) => row[6] !== null && data.readAt - row[6] >= WEEK;
  const tests = {
    search: (row, text) => `${row[0]}\n${row[12] ?? ""}`.toLowerCase().includes(text.toLowerCase()),
    owner: (row, value) => row[13] === value,
    pattern: (row, value) => (row[1] ?? row[0]) === value,
    type: (row, value) => row[2] === value,
    state: (row, value) => row[3] === value,
    age: (row, value) => row[4] === value,
    idle: (row, value) => isIdle(row) === (value === "yes"),
    // Not by the time of expiry: active groups have one, too, but the chart does not count them.
    expires: (row, value) => row[11] !== null && (value === "week" || row[11] === value),
  };

  // How many groups of the whole cluster match the filters; null = unknown.
  function everywhere() {
    const { pattern, expires, idle, search, owner, ...rest } = wanted;
    const others = Object.keys(rest).length;
    if (search || owner) return null;
    if (pattern && !expires && !others && Object.hasOwn(data.patterns, pattern)) {
      const [there, idles] = data.patterns[pattern];
      return idle ? (idle === "yes" ? idles : there - idles) : there;
    }
    if (expires && !pattern && !idle && !others) {
      return expires === "week" ? Object.values(data.expiring).reduce((a, b) => a + b, 0) : data.expiring[expires] ?? 0;
    }
    if (pattern || expires || idle) return null;
    const fits = ([type, state, age]) => Object.entries(rest).every(([name, value]) => ({ type, state, age })[name] === value);
    return data.counts.filter(fits).reduce((sum, count) => sum + count[3], 0);
  }

  const groups = table("groups-table", (there, all) => {
    if (!Object.keys(wanted).length) return some(there, all);
    const known = everywhere();
    const cut = known !== null && known > all ? `; the cluster has ${numbers.format(known)} such groups` : "";
    return `${some(there, all)} that match${all === 1 ? "es" : ""}${cut}`;
  });

  function fromHash() {
    if (!groups || (location.hash && !/^#groups(\?|$)/.test(location.hash))) return;
    const given = new URLSearchParams(location.hash.split("?").slice(1).join("?"));
    wanted = {};
    for (const name of FILTERS) {
      const value = given.get(name) ?? "";
      const field = form.elements[name];
      // A link may have a value that is no option of the filter.
      if (value && field.options && ![...field.options].some((o) => o.value === value)) field.append(new Option(value, value));
      field.value = value;
      if (value) wanted[name] = value;
    }
    groups.show((row) => Object.entries(wanted).every(([name, value]) => tests[name](row, value)));
  }

  function toHash(replace) {
    const parts = FILTERS.filter((name) => form.elements[name].value).map(
      (name) => `${name}=${encodeURIComponent(form.elements[name].value)}`,
    );
    const hash = parts.length ? `#groups?${parts.join("&")}` : "#groups";
    if (hash !== location.hash) history[replace ? "replaceState" : "pushState"](null, "", hash);
    fromHash();
  }

  function showGroups() {
    fromHash();
    document.getElementById("groups").scrollIntoView();
    document.getElementById("groups-title").focus({ preventScroll: true });
  }

  if (groups) {
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => event.target.name === "search" && toHash(true));
    form.addEventListener("change", (event) => event.target.name !== "search" && toHash(false));
    form.addEventListener("reset", () => setTimeout(() => toHash(false)));
    document.addEventListener("click", (event) => {
      const target = event.target.closest("a")?.getAttribute("href") ?? "";
      if (!target.startsWith("#groups?") || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      if (target !== location.hash) history.pushState(null, "", target);
      showGroups();
    });
    window.addEventListener("popstate", fromHash);
    fromHash();
    if (location.hash.startsWith("#groups?")) showGroups();
    else groups.show(() => true);
  }

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
      const text = button.previousElementSibling;
      let copied = true;
      try {
        await navigator.clipboard.writeText(text.textContent);
      } catch {
        getSelection().selectAllChildren(text);
        copied = document.execCommand("copy");
      }
      button.textContent = copied ? "Copied" : "Selected: copy it";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
  }
})();
