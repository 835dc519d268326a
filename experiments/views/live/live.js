"use strict";
// Asks whether the runs have gone on, and then puts what is new in place of what is shown, without moving the reader.
(function () {
  const every = 1500; // milliseconds
  const parts = ["header", "nav", "main"];
  const bar = document.createElement("div");
  bar.className = "live";
  bar.innerHTML = '<p role="status">live</p><button type="button" aria-pressed="false">Pause</button>';
  document.querySelector("header").before(bar);
  const [said, pause] = bar.children;
  let shown = null, paused = false, failed = 0;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    said.textContent = paused ? "paused" : "live";
  });

  function end(words) {
    said.textContent = words;
    pause.remove();
    bar.dataset.ended = "yes";
  }

  async function renew() {
    const next = new DOMParser().parseFromString(await (await fetch(location.pathname)).text(), "text/html");
    const heights = new Map([...document.querySelectorAll(".plot")].map((plot) => [plot.id, plot.clientHeight]));
    const folded = new Map([...document.querySelectorAll("details")].map((each) => [each.textContent.slice(0, 60), each.open]));
    for (const part of parts) document.querySelector(part).replaceWith(next.querySelector(part));
    for (const [id, height] of heights) {
      const plot = document.getElementById(id);
      if (plot) plot.style.minHeight = height + "px";
    }
    for (const each of document.querySelectorAll("details:not(.contents)"))
      each.open = folded.get(each.textContent.slice(0, 60)) ?? each.open;
    document.title = next.title;
    await window.show();
    for (const plot of document.querySelectorAll(".plot")) plot.style.minHeight = "";
  }

  async function look() {
    try {
      const { version, over } = await (await fetch("state")).json();
      if (version !== shown && (!paused || over)) {
        if (shown !== null) await renew();
        shown = version;
      }
      failed = 0;
      if (over) return end("over: nothing more will come");
    } catch (error) {
      failed += 1;
      if (failed === 3) return end("no longer updated: fairbloom watch has ended");
    }
    setTimeout(look, every);
  }
  window.drawn.then(look);
})();
