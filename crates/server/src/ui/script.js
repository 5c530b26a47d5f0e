// Keeps an open view up to date: the server sends its changing part as HTML, and this puts it in
// place node by node, so that focus, selection and open details stay where they are.
"use strict";
(() => {
  const live = document.getElementById("live");
  const detail = document.getElementById("detail");
  const pause = document.getElementById("pause");
  let paused = false;
  let source = null;

  function sameAttributes(from, to) {
    for (const { name } of [...from.attributes]) {
      if (!to.hasAttribute(name) && !(from.tagName === "DETAILS" && name === "open")) from.removeAttribute(name);
    }
    for (const { name, value } of to.attributes) {
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
  }

  // Changes the children of `from` into those of `to`.
  function morph(from, to) {
    const wanted = [...to.childNodes];
    wanted.forEach((next, at) => {
      const now = from.childNodes[at];
      if (!now) from.append(next);
      else if (now.nodeType !== next.nodeType || now.nodeName !== next.nodeName) now.replaceWith(next);
      else if (now.nodeType === Node.TEXT_NODE) {
        if (now.data !== next.data) now.data = next.data;
      } else if (now.nodeType === Node.ELEMENT_NODE) {
        // What a person is typing into stays.
        if (now === document.activeElement && now.tagName === "INPUT") return;
        sameAttributes(now, next);
        morph(now, next);
      }
    });
    while (from.childNodes.length > wanted.length) from.lastChild.remove();
  }

  function show(html) {
    const next = document.createElement("div");
    next.innerHTML = html;
    morph(live, next);
  }

  function listen() {
    const path = live && live.dataset.live;
    if (!path || source) return;
    source = new EventSource(path);
    source.onmessage = (event) => {
      document.body.classList.remove("stale");
      if (!paused) show(event.data);
    };
    source.onerror = () => document.body.classList.add("stale");
  }

  function silence() {
    if (source) source.close();
    source = null;
  }

  function setPaused(value) {
    paused = value;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
  }

  // Shows a batch below the timeline instead of on a page of its own. The view is stopped meanwhile,
  // so that the bar stays under the hand.
  async function showDetail(link) {
    if (pause && !paused) setPaused(true);
    const answer = await fetch(link.getAttribute("href"), { headers: { accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const part = page.getElementById("live");
    detail.replaceChildren(...(part ? part.childNodes : []));
    detail.scrollIntoView({ block: "nearest" });
  }

  // Sends the form that tries a model, and shows the answer below it instead of on a new page.
  document.addEventListener("submit", async (event) => {
    const form = event.target.closest("#try");
    if (!form) return;
    event.preventDefault();
    const reply = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) });
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    const part = page.getElementById("answer");
    const shown = part ? [...part.childNodes] : [page.body.textContent];
    document.getElementById("answer").replaceChildren(...shown);
  });

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-detail]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    showDetail(link);
  });

  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "p" && pause) setPaused(!paused);
    if (event.key === "Escape") detail.replaceChildren();
    // Arrows lead from bar to bar, and + and - zoom.
    const bars = [...document.querySelectorAll("#live .timeline a")];
    const at = bars.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step && at >= 0 && bars[at + step]) {
      event.preventDefault();
      bars[at + step].focus();
    }
    const spans = [...document.querySelectorAll("#live .spans a")];
    const zoom = { "+": -1, "-": 1 }[event.key];
    const here = spans.findIndex((span) => span.hasAttribute("aria-current"));
    if (zoom && spans[here + zoom]) location.assign(spans[here + zoom].href);
  });

  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => setPaused(!paused));
  }
  // A hidden page asks for nothing.
  document.addEventListener("visibilitychange", () => (document.hidden ? silence() : listen()));
  addEventListener("pagehide", silence);
  listen();
})();
