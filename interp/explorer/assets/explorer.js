"use strict";
// What a page must do by itself: know its width, copy, draw a PNG, and say so when the server is gone.
window.dash_clientside = Object.assign({}, window.dash_clientside, {
  explorer: {
    page: (page) => [page === "model", page !== "model"],
    // Which panels show something else now: those whose fields of the view changed get a new key, and with it a request.
    concerned: (fragment, narrow, again, depends, ...keys) => {
      const same = window.dash_clientside.no_update;
      if (fragment === undefined || fragment === null) return keys.map(() => same);
      const said = new URLSearchParams(fragment.replace(/^#/, ""));
      return Object.values(depends).map((fields, i) => {
        const own = new URLSearchParams();
        for (const field of fields) if (said.has(field)) own.set(field, said.get(field));
        const key = { fragment: "#" + own.toString(), narrow: fields.includes("narrow") && narrow, again };
        return JSON.stringify(key) === JSON.stringify(keys[i]) ? same : key;
      });
    },
    image: (told) => {
      if (told) {
        const { data, layout } = told.figure;
        const size = { format: "png", scale: 2, width: layout.width, height: layout.height };
        window.Plotly.downloadImage({ data, layout }, { ...size, filename: told.name.replace(/\.png$/, "") });
      }
      return "";
    },
    copy: (clicks) => {
      const code = document.getElementById("python");
      const said = document.getElementById("copied");
      if (!clicks || !code) return "";
      const tell = (text) => { said.textContent = text; };
      const select = () => {
        const range = document.createRange();
        range.selectNodeContents(code);
        window.getSelection().removeAllRanges();
        window.getSelection().addRange(range);
        tell("Selected below: press Ctrl+C.");
      };
      if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(() => tell("Copied."), select);
      else select();
      return "";
    },
  },
});

(() => {
  const small = window.matchMedia("(max-width: 640px)");
  const ready = () => window.dash_clientside && window.dash_clientside.set_props && document.getElementById("explorer");
  const tellWidth = () => window.dash_clientside.set_props("narrow", { data: small.matches });
  const wait = setInterval(() => { if (ready()) { clearInterval(wait); if (small.matches) tellWidth(); } }, 50);
  small.addEventListener("change", tellWidth);

  // A panel that is drawn anew takes the focus with it: give it back to the control of the same id, or to its opposite.
  let focused = null;
  document.addEventListener("focusin", (event) => { focused = event.target.id || null; });
  new MutationObserver(() => {
    if (!focused || document.activeElement !== document.body) return;
    const opposite = focused.includes('"remove"') ? focused.replace('"remove"', '"back"') : focused.replace('"back"', '"remove"');
    const found = document.getElementById(focused) || document.getElementById(opposite);
    if (found) found.focus({ preventScroll: true });
  }).observe(document.documentElement, { childList: true, subtree: true });
  document.addEventListener("pointerdown", () => { focused = null; });

  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.id === "text") {
      // the box hands its text on when it is left
      event.target.blur();
      setTimeout(() => document.getElementById("read").click(), 60);
      event.target.focus();
    }
  });
  document.addEventListener("click", (event) => {
    const place = event.target.dataset && event.target.dataset.goto;
    if (!place) return;
    const target = document.getElementById(place);
    target.tabIndex = -1;
    target.focus({ preventScroll: true });
    target.scrollIntoView();
  });

  // The server is gone: say it in place, ask until it is back, then draw everything again from what the page holds.
  const own = window.fetch.bind(window);
  let asking = null, tries = 0;
  const box = () => document.getElementById("offline");
  const show = (text) => { const div = box(); if (div) { div.textContent = text; div.hidden = !text; } };
  function gone(text) {
    show(text);
    if (asking) return;
    asking = setInterval(async () => {
      try {
        const answer = await own(window.location.pathname, { cache: "no-store" });
        if (answer.status === 404) { show("The explorer was restarted under another address: open the one that its terminal shows now, and put what follows # in your address bar behind it."); return; }
        if (!answer.ok) return;
      } catch { return; }
      clearInterval(asking);
      asking = null;
      show("");
      window.dash_clientside.set_props("again", { data: ++tries });
    }, 1500);
  }
  window.fetch = async (...given) => {
    const url = String(given[0] && given[0].url || given[0]);
    if (!url.includes("_dash-update-component")) return own(...given);
    try {
      const answer = await own(...given);
      if (answer.status === 404) gone("The explorer was restarted under another address.");
      return answer;
    } catch (error) {
      gone("The explorer does not answer: its server has stopped, or the connection is lost. This page goes on by itself when it is back.");
      throw error;
    }
  };
})();
