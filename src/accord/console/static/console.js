// What makes a page more comfortable; every page works without it.

"use strict";

let copied = 0;

// A button that copies each command.
const offerCopies = (root) => {
  if (!navigator.clipboard) return;
  for (const line of root.querySelectorAll(".command:not(.copies), .copy:not(.copies)")) {
    const code = line.querySelector("code");
    if (!code) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    // What it copies is named by the line itself, after the button's own word.
    code.id ||= `copied-${copied += 1}`;
    button.setAttribute("aria-describedby", code.id);
    line.classList.add("copies");
    line.append(button);
  }
};

// Times in the reader's own zone; UTC stays in the title.
const showTimes = (root) => {
  for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.valueOf())) continue;
    time.title = time.textContent;
    time.textContent = moment.toLocaleString();
  }
};

const enrich = (root) => { offerCopies(root); showTimes(root); };

// A log stays at its end unless somebody scrolls up.
const toEnd = (tail) => { tail.scrollTop = tail.scrollHeight; };

document.addEventListener("DOMContentLoaded", () => {
  enrich(document);
  document.querySelectorAll(".tail").forEach(toEnd);
  const menu = document.querySelector(".menu");
  const wide = matchMedia("(min-width: 48rem)");
  const fit = () => { if (menu) menu.open = wide.matches; };
  fit();
  wide.addEventListener("change", fit);
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
