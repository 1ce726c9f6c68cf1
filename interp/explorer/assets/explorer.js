"use strict";
// What a page must do by itself: know its width, copy, draw a PNG, and say so when the server is gone.
window.dash_clientside = Object.assign({}, window.dash_clientside, {
  explorer: {
    page: (page) => [page === "model", page !== "model"],
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
