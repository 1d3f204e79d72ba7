// The little that pages do beyond HTML. Each works without it.
"use strict";

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.querySelector("input[type=search]");
  if (search) {
    event.preventDefault();
    search.focus();
    search.select();
  }
});

// Pages follow what happens by htmx. Under the policy of this receiver only this may make markup of a text, and only
// of the parts that the receiver's own stream sends; a text never becomes script.
if (window.htmx) {
  const never = () => {
    throw new Error("pages hold no script");
  };
  const rules = { createHTML: (text) => text, createScript: never };
  const policy = window.trustedTypes ? window.trustedTypes.createPolicy("htmx", rules) : rules;
  window.htmx.registerExtension("ours", { init: (api) => api.initSecurity(policy, never, never) });

  // All tabs of this browser go by one name: together they hold four streams, the others ask every few seconds.
  const main = document.getElementById("main");
  let browser = "";
  try {
    browser = localStorage.getItem("browser") || crypto.getRandomValues(new Uint32Array(3)).join("");
    localStorage.setItem("browser", browser);
  } catch {
    // It keeps nothing: so it shares with the others at its address.
  }
  setTimeout(() => {
    if (!main.dataset.follow) return;
    main.setAttribute("hx-sse:connect", `${main.dataset.follow}&browser=${browser}`);
    window.htmx.process(main);
  });

  // What is old says so.
  let heard = Date.now();
  let refused = false;
  const look = () => {
    const quiet = Math.round((Date.now() - heard) / 1000);
    const old = !document.hidden && quiet > 20 && Boolean(main.dataset.follow);
    const ago = quiet < 120 ? `${quiet} s` : `${Math.round(quiet / 60)} min`;
    const gone = `The receiver was last heard ${ago} ago; this page shows what was then.`;
    const said = refused ? "The receiver lets this browser look no more. Load the page again." : gone;
    document.body.classList.toggle("old", old);
    const note = document.getElementById("old");
    if (note.textContent !== (old ? said : "")) note.textContent = old ? said : "";
  };
  main.addEventListener("htmx:sse:after:message", () => {
    heard = Date.now();
    refused = false;
    look();
  });
  main.addEventListener("htmx:sse:error", (event) => {
    refused = event.detail.status === 403;
  });
  setInterval(look, 5000);
  document.addEventListener("visibilitychange", () => {
    heard = Date.now();
  });
}
