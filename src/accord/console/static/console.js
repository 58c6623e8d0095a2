// What makes a page more comfortable; every page works without it.

"use strict";

let copied = 0;

// Words of the page's language.
const { copy: COPY, copied: COPIED } = document.documentElement.dataset;

// A button that copies each command.
const offerCopies = (root) => {
  if (!navigator.clipboard) return;
  for (const line of root.querySelectorAll(".command:not(.copies), .copy:not(.copies)")) {
    const code = line.querySelector("code");
    if (!code) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet";
    button.textContent = COPY;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.dataset.whole ?? code.textContent);
      button.textContent = COPIED;
      setTimeout(() => { button.textContent = COPY; }, 1500);
    });
    // What it copies is named by the line itself, after the button's own word.
    code.id ||= `copied-${copied += 1}`;
    button.setAttribute("aria-describedby", code.id);
    line.classList.add("copies");
    line.append(button);
  }
};

// A button that copies the text that it carries.
const offerTexts = (root) => {
  if (!navigator.clipboard) return;
  for (const button of root.querySelectorAll("button[data-copy][hidden]")) {
    button.hidden = false;
    const word = button.textContent;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = COPIED;
      setTimeout(() => { button.textContent = word; }, 1500);
    });
  }
};

// Enter sends what is written, Shift-Enter begins a new line.
const sendByEnter = (root) => {
  for (const field of root.querySelectorAll("textarea[data-enter]:not([data-sends])")) {
    field.dataset.sends = "yes";
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (field.value.trim()) field.form.requestSubmit();
    });
  }
};

// A command breaks between its words, and not behind the dashes of an option.
const keepWords = (root) => {
  for (const code of root.querySelectorAll(".command code:not(:has(.word))")) {
    const words = code.textContent.split(" ").map((text) => {
      const word = document.createElement("span");
      word.className = "word";
      word.textContent = text;
      return word;
    });
    code.replaceChildren(...words.flatMap((word, place) => (place ? [" ", word] : [word])));
  }
};

// Times as people say them, such as "5 minutes ago"; the exact time, here and in UTC, is in the title.
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const relative = new Intl.RelativeTimeFormat(document.documentElement.lang, { numeric: "auto" });
const dates = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "medium", timeStyle: "short" });
const sayTime = (time) => {
  const moment = new Date(time.dateTime);
  const seconds = (moment - Date.now()) / 1000;
  const [unit, length] = UNITS.find(([, each]) => Math.abs(seconds) >= each) ?? UNITS.at(-1);
  // After "until" stands a date, since "until in 23 hours" is no English.
  const isDate = time.classList.contains("date");
  const isFar = Math.abs(seconds) > 7 * 86400;
  if (isDate) time.textContent = dates.format(moment);
  else time.textContent = isFar ? moment.toLocaleString() : relative.format(Math.trunc(seconds / length), unit);
};
const showTimes = (root) => {
  for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.valueOf())) continue;
    time.title = `${moment.toLocaleString()} (${time.textContent})`;
    sayTime(time);
  }
};

// One button shows or hides the commands of every page.
const offerCommands = () => {
  const button = document.querySelector("button.commands");
  if (!button) return;
  const set = (shown) => {
    document.documentElement.classList.toggle("commands", shown);
    button.setAttribute("aria-pressed", String(shown));
    localStorage.setItem("commands", shown ? "yes" : "no");
  };
  button.hidden = !document.querySelector(".command");
  button.addEventListener("click", () => set(!document.documentElement.classList.contains("commands")));
  set(localStorage.getItem("commands") === "yes");
};

// The first steps stay hidden in a browser for the user who has hidden them.
const offerHiding = () => {
  const tour = document.querySelector(".tour");
  if (!tour) return;
  const kept = `tour ${tour.dataset.user}`;
  tour.hidden = localStorage.getItem(kept) === "hidden";
  const button = tour.querySelector(".hide-tour");
  button.hidden = false;
  button.addEventListener("click", () => {
    localStorage.setItem(kept, "hidden");
    tour.hidden = true;
    document.querySelector("main").focus();
  });
};

// Ctrl-K opens the search over everything; arrows move through what was found.
const offerPalette = () => {
  const palette = document.querySelector("dialog.palette");
  if (!palette || !window.htmx) return;
  const field = palette.querySelector("input");
  const links = () => [...palette.querySelectorAll(".hits a")];
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "k") return;
    event.preventDefault();
    if (palette.open) return palette.close();
    palette.showModal();
    field.select();
    window.htmx.trigger(field, "open");
  });
  palette.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      const all = [field, ...links()];
      all[(all.indexOf(document.activeElement) + step + all.length) % all.length].focus();
    } else if (event.key === "Enter" && document.activeElement === field && links().length) {
      event.preventDefault();
      links()[0].click();
    }
  });
  palette.addEventListener("click", (event) => { if (event.target === palette) palette.close(); });
};

// Each cell is told what its column is called, for screens on which a row is a card. The roles stay
// what they were, whatever the style makes of the table.
const ROLES = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell" };
// Words of people are not as long as this; ids and digests are.
const LONG = /[^\s-]{26}/;
const tellColumns = (root) => {
  for (const table of root.querySelectorAll("table:not(.told)")) {
    const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    for (const part of [table, ...table.querySelectorAll("thead, tbody, tr, td")]) {
      part.setAttribute("role", ROLES[part.tagName]);
    }
    for (const head of table.querySelectorAll("th")) {
      head.setAttribute("role", head.scope === "row" ? "rowheader" : "columnheader");
    }
    for (const body of table.tBodies) {
      for (const row of body.rows) {
        [...row.cells].forEach((cell, place) => {
          cell.dataset.column = titles[place];
          cell.classList.toggle("long", LONG.test(cell.innerHTML.replace(/<[^>]*>/g, " ")));
        });
      }
    }
    table.classList.add("told");
  }
};

const enrich = (root) => {
  for (const comfort of [offerCopies, offerTexts, sendByEnter, keepWords, showTimes, tellColumns]) comfort(root);
};

// A page that is looked at is told when something on it has changed, and fetches that part anew. A
// page that nobody looks at holds no connection: browsers have few for one site.
let news = null;
// While the connection is lost the page says so; what it shows is fetched anew when it is back.
let lost = false;
const setLost = (isLost) => {
  if (lost === isLost) return;
  lost = isLost;
  const banner = document.querySelector(".lost");
  if (banner) banner.hidden = !isLost;
  if (!isLost) refresh();
};
const refresh = () => {
  const part = document.querySelector("[data-live]");
  if (part && window.htmx) window.htmx.trigger(part, "news");
};
const follow = () => {
  const part = document.querySelector("[data-live]");
  if (news || !part || document.hidden) return;
  news = new EventSource(part.dataset.live);
  news.addEventListener("open", () => setLost(false));
  news.addEventListener("news", refresh);
  news.addEventListener("error", () => {
    if (!news) return;
    setLost(true);
    if (news.readyState !== EventSource.CLOSED) return;  // it tries again by itself
    news = null;
    setTimeout(follow, 5000);
  });
};
const unfollow = () => {
  if (news) news.close();
  news = null;
};

// A log stays at its end unless somebody scrolls up.
const toEnd = (tail) => { tail.scrollTop = tail.scrollHeight; };

document.addEventListener("DOMContentLoaded", () => {
  enrich(document);
  offerCommands();
  offerPalette();
  offerHiding();
  setInterval(() => document.querySelectorAll("time[datetime][title]").forEach(sayTime), 30_000);
  document.querySelectorAll(".tail").forEach(toEnd);
  if (!location.hash) document.querySelector(".turns #last")?.scrollIntoView({ block: "nearest" });
  follow();
  document.addEventListener("visibilitychange", () => (document.hidden ? unfollow() : follow()));
  addEventListener("pagehide", unfollow);
  addEventListener("pageshow", follow);
  const menu = document.querySelector(".menu");
  const wide = matchMedia("(min-width: 48rem)");
  const fit = () => { if (menu) menu.open = wide.matches; };
  fit();
  wide.addEventListener("change", fit);
  // What arrives later is enriched before it is painted, and again when htmx has set its classes.
  new MutationObserver((changes) => {
    for (const place of new Set(changes.map((change) => change.target))) enrich(place);
  }).observe(document.body, { childList: true, subtree: true });
  document.addEventListener("htmx:load", (event) => enrich(event.target));
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    const tail = event.target.closest(".tail");
    if (tail) tail.atEnd = tail.scrollHeight - tail.scrollTop - tail.clientHeight < 40;
  });
  document.addEventListener("htmx:sseMessage", (event) => {
    const tail = event.target.closest(".tail");
    if (tail && tail.atEnd) toEnd(tail);
  });
});
