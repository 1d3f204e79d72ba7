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

  // What is old says so.
  let heard = Date.now();
  const main = document.getElementById("main");
  main.addEventListener("htmx:sse:after:message", () => {
    heard = Date.now();
  });
  setInterval(() => {
    const quiet = Math.round((Date.now() - heard) / 1000);
    const old = !document.hidden && quiet > 60 && main.hasAttribute("hx-sse:connect");
    document.body.classList.toggle("old", old);
    document.getElementById("old").textContent = old ? `The receiver was last heard ${quiet} s ago.` : "";
  }, 5000);
  document.addEventListener("visibilitychange", () => {
    heard = Date.now();
  });
}
