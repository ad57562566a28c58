// Makes the parts of a page that are marked `data-live` anew when the server says that something has changed, and lets
// clocks run down meanwhile. Pages are whole without it.
"use strict";

let changes = Number(document.body.dataset.changes);
let ahead = Number(document.body.dataset.now) - Date.now() / 1000;
const served = new WeakMap(); // what the server has sent of each part; clocks have changed it since

function span(seconds) {
  const parts = [];
  let rest = Math.max(0, Math.floor(seconds));
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    const count = Math.floor(rest / length);
    rest -= count * length;
    if (count) parts.push(count + unit);
  }
  return parts.slice(0, 2).join(" ") || "0s";
}

function tick() {
  const now = Date.now() / 1000 + ahead;
  for (const clock of document.querySelectorAll("[data-deadline]")) {
    const left = Number(clock.dataset.deadline) - now;
    if (clock.dataset.total) {
      clock.setAttribute("width", Math.min(100, Math.max(0, (100 * left) / Number(clock.dataset.total))).toFixed(2));
    } else {
      clock.textContent = span(left);
    }
  }
}

function renew(page) {
  const open = document.activeElement;
  const focused = open && open.getAttribute && open.getAttribute("href");
  for (const part of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(part.id);
    if (!fresh || fresh.innerHTML === served.get(part)) continue;
    const within = part.contains(open);
    const scrolled = [...part.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    served.set(part, fresh.innerHTML);
    part.replaceChildren(...fresh.childNodes);
    part.querySelectorAll(".scroll").forEach((one, place) => (one.scrollLeft = scrolled[place] || 0));
    if (within && focused) {
      const again = [...part.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused);
      if (again) again.focus({ preventScroll: true });
    }
  }
  document.title = page.title;
}

async function load() {
  const answer = await fetch(location.href, { cache: "no-store" });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (!page.body.dataset.changes) return;
  changes = Number(page.body.dataset.changes);
  // A page that could not be made has only a sentence: what is here stays, below the banner.
  const hadPage = document.querySelector("main [data-live]");
  const hasPage = page.querySelector("main [data-live]");
  if (!hadPage && hasPage) location.reload();
  else renew(page);
  tick();
}

function pulse(state) {
  const mark = document.getElementById("pulse");
  if (!mark) return;
  mark.hidden = false;
  mark.className = "pulse " + state;
  mark.textContent = state === "live" ? "live" : "not connected";
}

async function poll() {
  try {
    const answer = await fetch("/changes", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const news = await answer.json();
    ahead = news.now - Date.now() / 1000;
    if (news.changes !== changes) await load();
    pulse("live");
  } catch {
    pulse("lost");
  }
  setTimeout(poll, 1000);
}

for (const part of document.querySelectorAll("[data-live]")) served.set(part, part.innerHTML);
setInterval(tick, 1000);
poll();
