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

// Jobs are compared in the order in which they were chosen.
let chosen = [];
document.addEventListener("change", ({ target }) => {
  if (target.name !== "jobs") return;
  chosen = chosen.filter((job) => job !== target.value);
  if (target.checked) chosen.push(target.value);
});
document.addEventListener("formdata", ({ formData }) => {
  const jobs = formData.getAll("jobs").sort((a, b) => chosen.indexOf(a) - chosen.indexOf(b));
  formData.delete("jobs");
  for (const job of jobs) formData.append("jobs", job);
});

// A page asks for itself every two seconds; htmx puts what differs into place. Under the policy of this receiver only
// htmx may make markup of a text, and only of the receiver's own pages; a text never becomes script.
const main = document.getElementById("main");
if (window.htmx && main.hasAttribute("hx-get")) {
  const never = () => {
    throw new Error("pages hold no script");
  };
  const rules = { createHTML: (text) => text, createScript: never };
  const policy = window.trustedTypes ? window.trustedTypes.createPolicy("htmx", rules) : rules;
  window.htmx.registerExtension("ours", { init: (api) => api.initSecurity(policy, never, never) });

  let tag = "";
  let heard = Date.now();
  let refused = false;
  main.addEventListener("htmx:config:request", (event) => {
    if (document.hidden) event.preventDefault();
    if (tag) event.detail.ctx.request.headers["If-None-Match"] = tag;
  });
  main.addEventListener("htmx:before:response", (event) => {
    if (event.detail.ctx.request.action !== main.getAttribute("hx-get")) return event.preventDefault();
    const { status, headers } = event.detail.ctx.response;
    refused = status === 403;
    if (status === 200) tag = headers.get("ETag");
    else event.preventDefault();
    if (status === 200 || status === 304) heard = Date.now();
    look();
  });

  // A filter acts at once: the page has another address from now on.
  let typing;
  main.addEventListener("input", ({ target }) => {
    const form = target.closest(".filters");
    if (!form) return;
    clearTimeout(typing);
    typing = setTimeout(() => {
      const said = [...new FormData(form)].filter(([, value]) => value);
      const address = `${form.getAttribute("action")}?${new URLSearchParams(said)}`;
      history.replaceState(null, "", address);
      main.setAttribute("hx-get", address);
      tag = "";
      window.htmx.trigger(main, "filtered");
    }, target.type === "search" ? 300 : 0);
  });

  // What is old says so.
  const look = () => {
    const quiet = Math.round((Date.now() - heard) / 1000);
    const old = !document.hidden && quiet > 20;
    const ago = quiet < 120 ? `${quiet} s` : `${Math.round(quiet / 60)} min`;
    const gone = `The receiver last answered ${ago} ago; this page shows the state of then.`;
    const said = refused ? "The receiver no longer admits this browser. Load the page again." : gone;
    document.body.classList.toggle("old", old);
    const note = document.getElementById("old");
    if (note.textContent !== (old ? said : "")) note.textContent = old ? said : "";
  };
  setInterval(look, 5000);
  document.addEventListener("visibilitychange", () => {
    heard = Date.now();
  });
}
